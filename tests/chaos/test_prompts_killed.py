"""A night of prompts whose Ray is killed."""

import json
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import Home
from tests.integration.test_language_line import DOES, WHO, write_tales

pytestmark = pytest.mark.timeout(600)

MANY = 1500


def test_a_score_whose_raylet_is_killed_says_so_and_is_taken_up(
    tmp_path: Path, new_home: Home
) -> None:
    file = write_tales(tmp_path)
    trained = new_home.run("run", str(file), "--set", "training.max_steps=40", timeout=400)
    assert trained.code == 0, trained.err
    rows = [{"id": n, "prompt": f"{WHO[n % 4]} {DOES[n // 4 % 4]} {n}"} for n in range(MANY)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file.write_text(file.read_text() + "batch: {sampling: {max_tokens: 32}, num_actors: 1}\n")
    words = ("score", str(file), "--input", str(tmp_path / "many.jsonl"), "--json")
    words += ("--date", "2026-01-05")
    predictions = new_home.path / "tables" / "predictions" / "tales"
    started = new_home.start(*words)
    deadline = time.monotonic() + 240
    while not [*predictions.rglob("*.parquet")]:
        assert started.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    raylet_of(new_home.path).kill()
    out, err = started.communicate(timeout=240)
    assert started.returncode == 1
    told = json.loads(out)
    assert told["exit_code"] == 1
    assert "nothing" in told["what"]
    assert "again" in told["next"]
    assert "Traceback" not in err
    assert [*predictions.glob("_delta_log/*.json")] == []
    again = new_home.run(*words, timeout=400)
    assert again.code == 0, again.err
    assert again.json["resumed"] > 0
    assert (again.json["rows"], again.json["scored"]) == (MANY, MANY)


def raylet_of(home: Path) -> psutil.Process:
    """Return the raylet that a command of this home has started."""
    named = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet"]
    (found,) = [each for each in named if each.environ().get("MILLRACE_HOME") == str(home)]
    return found
