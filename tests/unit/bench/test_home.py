import subprocess
import sys

import pytest

USERS = """
from bench import overhead, training
from bench.home import own_home

with own_home() as installation:
    print(installation.ray_address)
"""


def test_benchmarks_with_a_home_of_their_own_import_ray_inside_it() -> None:
    done = subprocess.run([sys.executable, "-c", USERS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "local\n"), done.stderr


def test_a_home_after_ray_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.home import own_home

    monkeypatch.setitem(sys.modules, "ray", object())
    with pytest.raises(RuntimeError, match="ray"), own_home():
        pass
