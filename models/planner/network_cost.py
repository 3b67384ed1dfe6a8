"""What a network costs by its own operations, and the counts that are kept."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.models.common.private_files import replace_private

MOST_COUNTS = 200
"""Counts that are kept."""


@dataclass(frozen=True)
class NetworkCost:
    """What a network costs.

    Attributes:
        parameters: number of parameters.
        trained: number of parameters that are trained.
        forward_flops: operations of matrix products and convolutions of a row, forward.
        activation_flops: those of them between two activations, as in attention.
        function_elements: elements of softmax, normalizations, GELU and the like, forward.
        training_flops: as `forward_flops`, forward and backward.
        saved_bytes: bytes that a row keeps for the backward pass, its input included.
        forward_kernels: operations that the forward pass starts.
        training_kernels: operations that the forward and the backward pass start.
        input_bytes: bytes of a row's input.
    """

    parameters: int
    trained: int
    forward_flops: float
    activation_flops: float
    function_elements: float
    training_flops: float
    saved_bytes: float
    forward_kernels: int
    training_kernels: int
    input_bytes: float


@dataclass(frozen=True)
class KeptCounts:
    """The counts of networks, by a digest of what the network is.

    Attributes:
        folder: where they are kept: `machine_cache()`.
    """

    folder: Path

    @property
    def _file(self) -> Path:
        return self.folder / "network-costs.json"

    def read(self, key: str) -> NetworkCost | None:
        """Return a count; None if it is not known, or damaged."""
        with suppress(KeyError, TypeError):
            cost = NetworkCost(**self._all()[key])
            return cost if all(_is_count(each) for each in vars(cost).values()) else None
        return None

    def write(self, key: str, cost: NetworkCost) -> None:
        """Keep a count, and of the earlier ones the newest.

        Where it cannot be written, it is counted again the next time.
        """
        kept = [*self._all().items()][-MOST_COUNTS:]
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private(self._file, json.dumps({**dict(kept), key: asdict(cost)}))

    def _all(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            known = json.loads(self._file.read_text())
            return known if isinstance(known, dict) else {}
        return {}


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf
