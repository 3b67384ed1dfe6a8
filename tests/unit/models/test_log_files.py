import subprocess
import sys
from pathlib import Path

from millrace.models.common.log_files import hold_log, is_log_in_use

WATCH = """
import sys
from pathlib import Path
from millrace.flows.console import redirect_native_stderr
redirect_native_stderr(Path(sys.argv[1]))
print("running", flush=True)
sys.stdin.readline()
"""


def test_a_log_is_in_use_as_long_as_a_process_holds_it(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert not is_log_in_use(log)
    with log.open("ab") as first, log.open("ab") as second:
        assert not is_log_in_use(log)
        hold_log(first.fileno())
        hold_log(second.fileno())
        assert is_log_in_use(log)
        first.close()
        assert is_log_in_use(log)
    assert not is_log_in_use(log)


def test_a_command_holds_the_log_of_its_native_code(tmp_path: Path) -> None:
    log = tmp_path / "native.log"
    process = subprocess.Popen(
        (sys.executable, "-c", WATCH, str(log)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    assert is_log_in_use(log)
    process.communicate("\n", timeout=60)
    assert not is_log_in_use(log)
