"""What holds for all tests."""

import ctypes
import signal
import sys
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from millrace.models.common.quiet import disable_openvino_telemetry
from tests import reaper

CHAOS = Path(__file__).parent / "chaos"
BATCH = "tests/unit/serving/batch"
SHARED = {
    "tests/integration/test_line.py": "demo",
    "tests/integration/test_readme.py": "demo",
    "tests/unit/models/test_cluster_tasks.py": "ray",
    f"{BATCH}/cluster/test_model_files.py": "ray",
    f"{BATCH}/cluster/test_spread.py": "ray",
    f"{BATCH}/test_checked_job.py": "ray",
    f"{BATCH}/test_meter.py": "ray",
    f"{BATCH}/test_ray_is_private.py": "ray",
    f"{BATCH}/test_scoring.py": "ray",
}
"""Files whose tests share a trained home or a Ray: one worker runs them, in their order."""

# A shell that starts tests in the background has Ctrl-C ignored, and so would every command that
# they start: what they send to it would be lost, as if the command had lost it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that imports OpenVINO before Millrace does would have its tools start a process for every
# conversion, which sends usage data.
disable_openvino_telemetry()


class SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = [
        ("ss_sp", ctypes.c_void_p),
        ("ss_flags", ctypes.c_int),
        ("ss_size", ctypes.c_size_t),
    ]


SS_DISABLE = 2


def pytest_configure() -> None:
    """Have the run leave no process behind, however it ends."""
    reaper.start()


def pytest_collection_finish() -> None:
    """Have Ctrl-C end the tests with a report: an import of the command line has changed that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`, for a run of some of the test files."""
    parser.addoption(
        "--part",
        type=_part,
        help="K/N: of the test files with a test to run, every Nth beginning with the Kth",
    )


def _part(text: str) -> tuple[int, int]:
    this, _, all_of_them = text.partition("/")
    if not 1 <= int(this) <= int(all_of_them):
        raise ValueError(text)
    return int(this), int(all_of_them)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark all of tests/chaos."""
    if item.path.is_relative_to(CHAOS):
        item.add_marker("chaos")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put unit tests that start a Ray before the others, and leave out what `--part` leaves out.

    Files are handed out in this order, and a long one at the end would run by itself. `-m` has been
    applied before, so the files with a test to run are shared out.
    """
    starts_ray = {"local_ray", "rows_here"}
    items.sort(key=lambda item: starts_ray.isdisjoint(getattr(item, "fixturenames", ())))
    if config.getoption("part") is None:
        return
    this, all_of_them = config.getoption("part")
    groups = sorted({_group(item.nodeid) for item in items})
    chosen = {*groups[this - 1 :: all_of_them]}
    config.hook.pytest_deselected(items=[i for i in items if _group(i.nodeid) not in chosen])
    items[:] = [item for item in items if _group(item.nodeid) in chosen]


def _group(nodeid: str) -> str:
    """Return what one worker runs: a file, or the files that share a home or a Ray with it."""
    file = nodeid.partition("::")[0]
    return SHARED.get(file, file)


class SharedFiles(LoadFileScheduling):
    """Hands out whole files, and together the files of `SHARED`."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Take `SharedFiles` for `--dist loadfile`."""
    return SharedFiles(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_runtest_setup() -> None:
    """Take signals on the thread's own stack again.

    OpenVINO's CPU plugin sets one for the thread that loads it, and where two are loaded and the
    first goes first, the second leaves behind the first's, which is freed: the next signal, a
    Ctrl-C or the end of a test's time, ends the whole process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).sigaltstack(ctypes.byref(SignalStack(ss_flags=SS_DISABLE)), None)
