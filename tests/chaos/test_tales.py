"""One home with a small decoder: the Ray of its prompts is killed, then another version comes."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import Home
from tests.integration.test_language_line import DOES, WHO, Tales, write_tales

pytestmark = pytest.mark.timeout(600)

MANY = 1500


@pytest.fixture(scope="module")
def tales(tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], Home]) -> Tales:
    """A home with a champion, and nothing that runs."""
    folder = tmp_path_factory.mktemp("tales")
    file, home = write_tales(folder), make(folder / "home")
    done = home.run("run", str(file), "--set", "training.max_steps=40", "--json", timeout=400)
    assert done.code == 0, done.err
    return Tales(home, file, done.json)


def test_a_score_whose_raylet_is_killed_says_so_and_is_taken_up(
    tmp_path: Path, tales: Tales
) -> None:
    home = tales.home
    rows = [{"id": n, "prompt": f"{WHO[n % 4]} {DOES[n // 4 % 4]} {n}"} for n in range(MANY)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = tales.file.with_name("nightly.yaml")
    batch = "batch: {sampling: {max_tokens: 32}, num_actors: 1}\n"
    file.write_text(tales.file.read_text() + batch)
    words = ("score", str(file), "--input", str(tmp_path / "many.jsonl"), "--json")
    words += ("--date", "2026-01-05")
    predictions = home.path / "tables" / "predictions" / "tales"
    started = home.start(*words)
    deadline = time.monotonic() + 240
    while not [*predictions.rglob("*.parquet")]:
        assert started.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    raylet_of(home.path).kill()
    out, err = started.communicate(timeout=240)
    assert started.returncode == 1
    told = json.loads(out)
    assert told["exit_code"] == 1
    assert "nothing" in told["what"]
    assert "again" in told["next"]
    assert "Traceback" not in err
    assert [*predictions.glob("_delta_log/*.json")] == []
    again = home.run(*words, timeout=400)
    assert again.code == 0, again.err
    assert again.json["resumed"] > 0
    assert (again.json["rows"], again.json["scored"]) == (MANY, MANY)


def raylet_of(home: Path) -> psutil.Process:
    """Return the raylet that a command of this home has started."""
    named = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet"]
    (found,) = [each for each in named if each.environ().get("MILLRACE_HOME") == str(home)]
    return found


@pytest.fixture
def served(tales: Tales) -> Iterator[Tales]:
    """The home with everything up, and its champion live."""
    up = tales.home.run("up", "--json", env={"MILLRACE_PIPELINES": str(tales.file)})
    assert up.code == 0, up.err
    try:
        tales.until_live(1)
        yield tales
    finally:
        tales.home.run("down")


def test_another_version_beside_it_is_judged_by_the_same_text(served: Tales) -> None:
    done = served.home.run(
        *("run", str(served.file), "--json"),
        *("--set", "training.max_steps=50", "--set", "model.tokenizer.vocab_size=280"),
        *("--set", "export.candidates=[openvino-fp32, openvino-int8]"),
        timeout=400,
    )
    assert done.code == 0, done.err
    exact, short = done.json["certificate"]["forms"]
    assert short["stage"]["size_bytes"] < exact["stage"]["size_bytes"]
    promotion = done.json["promotion"]
    assert "cannot be measured" not in promotion["reason"]
    if promotion["champion"]:
        served.until_live(2)
    else:
        assert "worse" in promotion["reason"] or "would refuse" in promotion["reason"]
    history = served.home.run("history", "tales", "--json").json
    assert history[0]["kind"] == "live"
