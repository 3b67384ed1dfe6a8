"""How fast a form is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Speed:
    """What was measured with the threads of one instance.

    Attributes:
        p50_ms: median latency of one row, milliseconds; so p99_ms.
        rows_per_second: throughput of full batches.
        peak_memory_bytes: of the process, all that it loaded included.
    """

    p50_ms: float
    p99_ms: float
    rows_per_second: float
    peak_memory_bytes: int
