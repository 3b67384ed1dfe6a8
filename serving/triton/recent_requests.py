"""The requests that the guard recorded in the last seconds, by model."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from millrace.serving.guard.arrivals_tail import ArrivalsTail
from millrace.serving.triton.served_load import TO_MS
from millrace.serving.triton.server_index import owner_of


@dataclass
class RecentRequests:
    """The requests that the guard recorded in the last seconds.

    Attributes:
        tail: reads the record.
        window: seconds that are kept.
    """

    tail: ArrivalsTail
    window: float
    _looks: deque[tuple[float, Any]] = field(default_factory=deque, init=False)

    def look(self, now: float) -> None:
        """Read what came since the last look, at a moment of a clock that only goes forward.

        Raises:
            OSError: the record cannot be read.
        """
        self._looks.append((now, self.tail.read()))
        while len(self._looks) > 2 and now - self._looks[1][0] >= self.window:
            self._looks.popleft()

    @property
    def seconds(self) -> float:
        """The time between the first look that is kept and the last one."""
        return self._looks[-1][0] - self._looks[0][0] if self._looks else 0.0

    def by_model(self) -> dict[str, "Ended"]:
        """Return the requests of each model."""
        kept = [table for _, table in list(self._looks)[1:]]  # the first is what came before it
        return ended_by_model(pa.concat_tables(kept)) if kept else {}


@dataclass(frozen=True)
class Ended:
    """Requests that ended; all arrays are `[n]`.

    Attributes:
        milliseconds: float64, from the first byte of the request to the last one of the answer;
            negative if the client did not wait.
        is_answered: bool, without an error.
        is_grpc: bool.
    """

    milliseconds: NDArray[np.float64]
    is_answered: NDArray[np.bool_]
    is_grpc: NDArray[np.bool_]

    def chosen(self, places: NDArray[np.bool_]) -> "Ended":
        """Return some of the requests."""
        return Ended(*(each[places] for each in vars(self).values()))

    def count_within(self, bound: float) -> int:
        """Return how many were answered within a bound, in milliseconds."""
        return int((self.is_answered & (self.milliseconds <= bound)).sum())


def ended_by_model(lines: Any) -> dict[str, Ended]:
    """Return the requests of each model from lines of the guard; those to its columns are its own.

    Args:
        lines: a table of `arrivals_table.SCHEMA`.
    """
    if not len(lines):
        return {}
    names = np.array([owner_of(each) for each in lines["model"].to_pylist()])
    microseconds, status = lines["microseconds"].to_numpy(), lines["status"].to_numpy()
    is_grpc = np.array(lines["protocol"].to_pylist()) == "grpc"
    is_answered = np.where(is_grpc, status == 0, (status >= 200) & (status < 400))
    is_answered &= microseconds >= 0
    arrays = microseconds * TO_MS, is_answered, is_grpc
    return {
        name: Ended(*(each[names == name] for each in arrays)) for name in np.unique(names).tolist()
    }
