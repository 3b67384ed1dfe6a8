"""A perceptron that records when each epoch begins; it is loaded like a user's own family.

Both sides of a comparison train this class, so that the same clock in the workers times both. It
also makes the sides take turns of some epochs, so that both run under the same conditions.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

_DEADLINE_SECONDS = 300.0
_POLL_SECONDS = 0.01


@dataclass
class Turns:
    """Times one process of one side, and makes it wait while it is the other side's turn.

    Attributes:
        folder: shared by both sides; takes their marks and stamps.
        side: this side's name.
        other: the other side's.
        leads: whether this side has the first turn.
        workers: processes of each side.
        epochs: epochs of a turn.
        turns: turns of each side; epochs after them are free.
    """

    folder: str
    side: str
    other: str
    leads: bool
    workers: int
    epochs: int
    turns: int
    begun: int = field(default=-1, init=False)

    def begin_epoch(self) -> None:
        """Wait for this side's turn, and record when the process arrived and when it went on."""
        # The first call does not begin an epoch: it comes from the network's creation.
        arrived, self.begun = time.monotonic(), self.begun + 1
        if self.begun > 0:
            turn, epoch = divmod(self.begun - 1, self.epochs)
            if epoch == 0:
                self._finish(turn - 1)
            if epoch == 0 and turn < self.turns:
                self._wait_for(turn - 1 if self.leads else turn)
            self._stamp(arrived, time.monotonic())

    def _finish(self, turn: int) -> None:
        Path(self.folder, f"{self.side}-{turn}-{os.getpid()}").touch()

    def _wait_for(self, turn: int) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while turn >= 0 and self._finished(turn) < self.workers:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.other} did not finish its turn {turn}")
            time.sleep(_POLL_SECONDS)

    def _finished(self, turn: int) -> int:
        return len(list(Path(self.folder).glob(f"{self.other}-{turn}-*")))

    def _stamp(self, arrived: float, went_on: float) -> None:
        with Path(self.folder, f"{self.side}.{os.getpid()}.stamps").open("a") as file:
            file.write(f"{arrived} {went_on}\n")


class StampedPerceptron(nn.Module):
    """Linear layers with ReLU.

    Args:
        in_features: width of the input.
        num_classes: width of the output.
        width: width of the hidden layers.
        layers: how many of them.
        turns: the fields of `Turns`; no stamps and no turns if left out.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        width: int,
        layers: int,
        turns: dict[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.turns = Turns(**turns) if turns else None  # type: ignore[arg-type]
        widths = [in_features, *[width] * layers]
        hidden: list[nn.Module] = []
        for narrow, wide in zip(widths, widths[1:], strict=False):
            hidden += [nn.Linear(narrow, wide), nn.ReLU()]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, num_classes))

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[rows, in_features]` to logits `[rows, num_classes]`."""
        logits: Tensor = self.layers(rows)
        return logits

    def train(self, mode: bool = True) -> "StampedPerceptron":
        """Switch to training mode, as every epoch does at its beginning."""
        if mode and self.turns is not None:
            self.turns.begin_epoch()
        super().train(mode)
        return self
