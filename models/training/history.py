"""What happened in a training run, made out of the events as they come."""

import math
import re
from collections.abc import Iterable

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.training.progress import EpochEnded, Recovered, TrainEvent


class History:
    """Epochs and recoveries so far.

    Attributes:
        recoveries: for each time that training went on after a failure, the epochs that were done
            already; 0 is from the start.
    """

    def __init__(self) -> None:
        self.recoveries: list[int] = []
        self._epochs: dict[int, dict[str, float]] = {}
        self._failed = False

    @property
    def epochs(self) -> tuple[dict[str, float], ...]:
        """The metrics of every epoch, in order; of one that was done again, the later ones."""
        return tuple(self._epochs[epoch] for epoch in sorted(self._epochs))

    def add(self, event: TrainEvent) -> list[TrainEvent]:
        """Take in what happened, and return what there is to tell of it.

        That training went on is known when the first epoch after a failure ends.
        """
        if not isinstance(event, EpochEnded):
            self._failed = True
            return [event]
        epoch = int(event.metrics["epoch"])
        self._epochs[epoch] = event.metrics
        if not self._failed:
            return [event]
        self._failed = False
        self.recoveries.append(epoch - 1)
        return [Recovered(epoch - 1), event]

    def fault(self) -> WorkError | None:
        """Return what was wrong with a run that ended by itself, or None."""
        last = self.epochs[-1] if self.epochs else None
        if last is None or math.isfinite(last["train_loss"]):
            return None
        return WorkError(
            f"the loss is not a number after epoch {int(last['epoch'])}",
            seen=f"train_loss {last['train_loss']}",
            hint="lower training.learning_rate, or look for extreme values in the features",
        )


_UNUSED = "Expected to have finished reduction in the prior iteration"
_NAMES_AN_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b")


def failure_of(error: Exception, causes: Iterable[Exception], max_failures: int) -> MillraceError:
    """Return what to tell the user of a training run that failed for good.

    Args:
        error: what Ray Train raised.
        causes: the errors of the workers; an error of Ray's may hold the true one as `cause`.
        max_failures: how many failures were allowed.
    """
    found = [getattr(cause, "cause", None) or cause for cause in causes]
    for cause in found:
        if isinstance(cause, MillraceError):
            return cause
    text = str(found[0] if found else error).strip()
    if _UNUSED in text:
        return WorkError(
            "training failed: a step left parameters without a gradient, another did not",
            seen=_UNUSED,
            hint="set training.find_unused_parameters: true",
        )
    lines = text.splitlines()
    named = [line for line in lines if _NAMES_AN_ERROR.match(line)]
    return WorkError(
        "training failed",
        seen=(named or lines or [type(error).__name__])[-1],
        hint=f"mend the cause, or raise training.max_failures (now {max_failures})",
    )
