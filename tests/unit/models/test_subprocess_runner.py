import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.models.common import subprocess_runner
from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.subprocess_runner import Limits, describe_exit, run_in_subprocess

LIMITS = Limits(seconds=30.0, memory=4 << 30)


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def test_what_it_writes_comes_back(tmp_path: Path) -> None:
    text = "import sys; print(sys.argv[1:], sys.stdin.read())"
    out = run_in_subprocess(program(tmp_path, text), ["a", Path("b")], LIMITS, stdin=b"c")
    assert out == b"['a', 'b'] c\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('no such thing\\nand more')", "^ValueError: no such thing$"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed: SIGSEGV"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("bytearray(5 << 30)", "MemoryError"),
        (
            "from millrace.models.common.errors import WorkError; raise WorkError('no', seen=1)",
            "^no$",
        ),
    ],
)
def test_why_it_failed_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(WorkError, match=reason):
        run_in_subprocess(program(tmp_path, text), [], LIMITS)


def test_a_kill_is_final_where_the_caller_says_so(tmp_path: Path) -> None:
    text = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(WorkError, match="was killed") as refused:
        run_in_subprocess(program(tmp_path, text), [], LIMITS, retry_killed=False)
    assert not refused.value.transient


def test_one_that_was_killed_may_be_tried_again(tmp_path: Path) -> None:

    text = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(TransientError, match="was killed"):
        run_in_subprocess(program(tmp_path, text), [], LIMITS)


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    text = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    with pytest.raises(WorkError, match="within 2 s"):
        run_in_subprocess(program(tmp_path, text), [], Limits(2.0, 4 << 30))


def test_a_long_last_word_is_cut() -> None:
    assert len(describe_exit(1, "x" * 10_000)) == 500
    assert describe_exit(-signal.SIGABRT, "told") == "it crashed: SIGABRT"


RESERVE = """
import ctypes, pathlib, sys
from millrace.models.common import subprocess_runner
subprocess_runner.DRIVER = pathlib.Path(sys.argv.pop(1))
subprocess_runner.main()
"""


@pytest.mark.parametrize(("driver", "ending"), [("/", "reserved"), ("/no/such/driver", "refused")])
def test_beside_a_gpu_address_space_may_be_reserved(
    tmp_path: Path, driver: str, ending: str
) -> None:
    text = (
        "import mmap, sys\n"
        "try:\n"
        "    mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)\n"
        "except OSError:\n"
        "    sys.exit('refused')\n"
        "sys.exit('reserved')\n"
    )
    words = [sys.executable, "-c", RESERVE, driver, str(4 << 30), program(tmp_path, text)]
    assert subprocess.run(words, capture_output=True, text=True).stderr.strip() == ending


def test_beside_a_gpu_memory_is_limited_all_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RESERVE, "/", str(4 << 30)]
    words.append(program(tmp_path, "bytearray(5 << 30)"))
    assert "MemoryError" in subprocess.run(words, capture_output=True, text=True).stderr


def test_the_driver_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess_runner, "DRIVER", tmp_path)
    assert subprocess_runner.memory_resource() == resource.RLIMIT_DATA
    monkeypatch.setattr(subprocess_runner, "DRIVER", tmp_path / "none")
    assert subprocess_runner.memory_resource() == resource.RLIMIT_AS
