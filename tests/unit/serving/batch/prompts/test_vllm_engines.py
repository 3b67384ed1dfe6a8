"""How many engines there are, and whether there is a vLLM for them."""

import platform
import sys
from pathlib import Path

import pytest
import ray

from millrace.models.common.errors import InputError
from millrace.serving.batch.prompts.vllm_engines import (
    engines_of,
    inspect_python,
    require_versions,
    runtime_env_of,
)

STAND_INS = Path(__file__).parents[4] / "stand_ins"
HERE = {"python": platform.python_version(), "ray": ray.__version__, "vllm": "0.33.0"}


@pytest.mark.parametrize(
    ("wanted", "gpus", "each", "engines"),
    [(None, 8, 1, 8), (None, 8, 3, 2), (2, 8, 4, 2), (1, 1.9, 1, 1)],
)
def test_there_are_as_many_engines_as_wanted_or_as_there_is_room_for(
    wanted: int | None, gpus: float, each: int, engines: int
) -> None:
    assert engines_of(wanted, gpus, each) == engines


def test_no_gpu_is_told_with_what_to_do() -> None:
    with pytest.raises(InputError, match="there is no GPU for vLLM") as caught:
        engines_of(None, 0, 2)
    told = str(caught.value)
    assert "seen: Ray has no GPU" in told
    assert "valid: at least 2: batch.num_actors (1) times" in told
    assert "RAY_ADDRESS" in told
    assert "openvino" in told


def test_too_few_gpus_are_told() -> None:
    with pytest.raises(InputError, match="too few GPUs") as caught:
        engines_of(3, 4, 2)
    assert "seen: Ray has 4 GPUs" in str(caught.value)
    assert "lower batch.num_actors" in str(caught.value)


def test_the_path_of_a_python_may_have_a_space() -> None:
    assert runtime_env_of(Path("/of vllm/python"))["py_executable"] == "'/of vllm/python'"
    assert "py_executable" not in runtime_env_of(None)


def test_a_python_is_asked_for_its_versions(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={STAND_INS} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert inspect_python(python) == {**HERE, "vllm": "0.32.0+stand.in"}


def test_a_python_that_is_not_there_or_has_no_vllm_is_a_fault(tmp_path: Path) -> None:
    assert "No such file" in inspect_python(tmp_path / "python")["fault"]
    python = tmp_path / "without"
    python.write_text("#!/bin/sh\necho Traceback >&2\necho No module named vllm >&2\nexit 1\n")
    python.chmod(0o755)
    assert inspect_python(python) == {"fault": "No module named vllm"}


def test_an_environment_that_fits_tells_its_vllm() -> None:
    assert require_versions(HERE, None) == "0.33.0"


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        (
            {"fault": "ModuleNotFoundError: No module named 'ray'"},
            "No module named 'ray', reported by /p",
        ),
        ({**HERE, "ray": "2.1.0"}, "with ray 2.1.0, reported by /p"),
        ({**HERE, "python": "3.9.1"}, "Python 3.9 with"),
    ],
)
def test_an_environment_that_does_not_fit_is_told(told: dict[str, str], seen: str) -> None:
    with pytest.raises(InputError, match="cannot be used for the batch job") as caught:
        require_versions(told, Path("/p"))
    assert seen in str(caught.value)
    assert f"ray[data]=={ray.__version__}" in str(caught.value)
