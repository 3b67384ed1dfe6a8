"""Which module measures which benchmark, and how a module is run in a subprocess.

A module has `rows(wanted)`, a generator of `Row`. It runs in a process of its own: Ray, MLflow and
Prefect read their settings when they are imported, and the threads that one benchmark leaves behind
must not slow down the next.
"""

import importlib
import multiprocessing
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from bench.measure import Row, failed_row

MODULES: dict[str, tuple[str, ...]] = {
    "serving": ("P1", "P2", "P3"),
    "variants": ("P4", "F1"),
    "pretrained": ("P4T",),
    "compression": ("D1", "D2", "D3"),
    "training": ("P5",),
    "overhead": ("P10",),
    "startup": ("P15C", "P15W", "P15S", "P15N", "P15U", "P15A", "P15K", "P15H", "P17"),
    "table_size": ("P12I", "P12", "P12E"),
    "table_scale": ("P13",),
    "table_growth": ("P14", "P14N"),
    "idle": ("P16", "P16M"),
    "promotion": ("R1", "R2", "R3", "R4"),
    "splitter": ("S1", "S2", "S3"),
    "guard": ("G1", "G8", "G32", "G1R", "G32R"),
    "arrivals": ("AR32", "AR32R"),
    "named_columns": ("N1", "N32", "N32J", "N32L"),
    "serving_profile": ("SP1", "SP2", "SP2M", "SP2O", "SP3", "SP6"),
    "proofs": ("PF1", "PF2"),
    "stream_profile": ("SP4", "SP5"),
    "promotion_card": ("PC1", "PC2"),
    "peers": ("P11L", "P11L5", "P11B", "P11B5", "P11M", "P11M5", "P11R", "P11R5"),
    "text_step": ("T1", "T2", "T3"),
    "judge": ("J1", "J2"),
    "batch": ("P6", "P7", "P8"),
    "beside_online": ("BO1", "BO2", "BO3"),
    "planner": ("PL1", "PL2", "PL3", "PL4", "PL5", "PL6", "PL7", "PL8"),
    "language": ("P9", "P9G", "P9C", "P9S"),
}


def choose_benchmarks(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the benchmarks to run, by module; all of them for no names.

    Args:
        names: short names (P1) or modules (serving), in any case.

    Raises:
        ValueError: a name is neither.
    """
    words = {name.lower() for name in names}
    known = {word.lower() for module, rows in MODULES.items() for word in (module, *rows)}
    if unknown := sorted(words - known):
        raise ValueError(f"no benchmark is called {', '.join(unknown)}")
    chosen = {
        module: tuple(row for row in rows if not words or module in words or row.lower() in words)
        for module, rows in MODULES.items()
    }
    return {module: rows for module, rows in chosen.items() if rows}


def run_in_subprocess(module: str, wanted: Collection[str]) -> Iterator[Row]:
    """Yield the wanted rows of a module, which runs in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(module, tuple(wanted), sender))
    process.start()
    sender.close()
    left = list(wanted)
    with suppress(EOFError):
        while True:
            row: Row = receiver.recv()
            left.remove(row.name)
            yield row
    process.join()
    for name in left:
        yield failed_row(name, f"its process ended with exit code {process.exitcode}")


def _send_rows(module: str, wanted: tuple[str, ...], sender: Connection) -> None:
    for row in importlib.import_module(f"bench.{module}").rows(wanted):
        sender.send(row)
    sender.close()
