"""What a profile measured is used again for a day, where it was measured so."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.hardware import Machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.slo_spec import SloSpec
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHALLENGER, ModelVersion
from millrace.serving.profile.batch_level import Level
from millrace.serving.profile.service_times import ServiceTimes
from millrace.tasks.profile import find_version, profile_version
from millrace.tasks.profile_measurements import KeptTimes, alone
from tests.integration.planted import good, plant

ONE = np.ones(1)
LEVEL = Level(1.0, ONE, ONE, ONE.astype(np.int64), ONE > 1, 0 * ONE, ONE, ONE, ONE)
TIMES = ServiceTimes((1.0,), (0.5,), (LEVEL,))
NAME = "times-2x1"
VERSION = ModelVersion("m", 3, "d" * 64, "run")
GOAL = SloSpec(rate=10, p99_ms=20)
MACHINE = Machine("a processor", 2)


class Run:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def log_text(self, text: str, path: str) -> None:
        self.texts[path] = text


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., KeptTimes]:
    run = Run()

    def make(**other: Any) -> KeptTimes:
        facts = {"version": VERSION, "machine": MACHINE, "engine": "triton 1", "goal": GOAL}
        return KeptTimes(Installation(tmp_path, "", ""), **{"run": run, **facts, **other})

    make().write(NAME, TIMES.to_json())
    assert list(run.texts) == ["profile/times-2x1.json"]
    return make


def test_one_profile_of_a_home_runs_at_a_time(tmp_path: Path) -> None:
    home = Installation(tmp_path, "", "")
    for _ in range(2):
        with (
            alone(home),
            pytest.raises(InputError, match="another profile is running"),
            alone(home),
        ):
            pass


def test_what_was_measured_is_used_again(kept: Callable[..., KeptTimes]) -> None:
    found = kept().read(NAME, ServiceTimes.from_json)
    assert found is not None
    assert found.to_json() == TIMES.to_json()
    assert kept(goal=SloSpec(rate=99, p99_ms=1)).read(NAME, ServiceTimes.from_json) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"version": ModelVersion("m", 4, "d" * 64, "run")},
        {"version": ModelVersion("m", 3, "e" * 64, "run")},
        {"machine": Machine("a processor", 4)},
        {"machine": Machine("a processor", 2, ("avx2",))},
        {"engine": "triton 2"},
        {"goal": SloSpec(rate=10, p99_ms=20, rows=4)},
        {"goal": SloSpec(rate=10, p99_ms=20, answer_tokens=9)},
        {"anew": True},
    ],
)
def test_what_was_measured_otherwise_is_not(
    kept: Callable[..., KeptTimes], other: dict[str, Any]
) -> None:
    assert kept(**other).read(NAME, ServiceTimes.from_json) is None
    assert kept().read("times-1x1", ServiceTimes.from_json) is None


def test_what_is_old_or_damaged_is_measured_again(
    kept: Callable[..., KeptTimes], tmp_path: Path
) -> None:
    (file,) = (tmp_path / "profiles").glob("*/*.json")
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("{")
    assert kept().read(NAME, ServiceTimes.from_json) is None
    kept().write(NAME, TIMES.to_json())
    yesterday = time.time() - 25 * 3600
    os.utime(file, (yesterday, yesterday))
    assert kept().read(NAME, ServiceTimes.from_json) is None
    os.utime(file.parent, (yesterday, yesterday))
    kept(engine="triton 2").write(NAME, TIMES.to_json())
    assert not file.exists()


def test_the_challenger_is_profiled_or_the_newest_that_passed(
    mlflow_places: Installation,
) -> None:
    name = "to_profile"
    registry = registry_of(mlflow_places)
    with pytest.raises(InputError, match="there is no version of to_profile to profile"):
        find_version(registry, name, None)
    first, _ = (plant(mlflow_places, name, good(seed)) for seed in (0, 1))
    plant(mlflow_places, name, good(2, tags={"millrace.certificate": "failed: too large"}))
    assert find_version(registry, name, None).version == 2
    registry.set_alias(registry.version(name, first.number), CHALLENGER)
    assert find_version(registry, name, None).version == 1
    assert find_version(registry, name, 3).version == 3


@pytest.mark.parametrize(
    ("serving", "words"),
    [
        ({}, "there is no latency goal to profile for"),
        (
            {"max_batch_size": 8, "slo": {"rate": 1, "p99_ms": 1, "rows": 16}},
            "larger requests than the server takes",
        ),
    ],
)
def test_a_goal_that_cannot_be_profiled_is_refused(
    mlflow_places: Installation, serving: dict[str, Any], words: str
) -> None:
    dataset = {"source": "sklearn:digits", "target": "target"}
    model = {"family": "mlp"}
    values = {"name": "m", "dataset": dataset, "model": model, "serving": serving}
    with pytest.raises(InputError, match=words):
        profile_version(Pipeline.model_validate(values), mlflow_places)
