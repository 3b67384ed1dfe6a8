"""How many workers train where Ray has some GPUs."""

import pytest

from millrace.models.config.training_spec import TrainingSpec
from millrace.models.training import workers


@pytest.mark.parametrize(("gpus", "chosen"), [(0, 2), (1, 1), (8, 8)])
def test_without_a_number_there_is_one_worker_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, chosen: int
) -> None:
    monkeypatch.setattr(workers, "gpus_of_ray", lambda: gpus)
    assert workers.choose_workers(TrainingSpec()).workers == chosen
    assert workers.scaling_config(chosen).use_gpu is (gpus > 0)


@pytest.mark.parametrize(("gpus", "is_warned"), [(0, False), (1, True), (3, False)])
def test_a_given_number_stays_and_idle_gpus_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gpus: int, is_warned: bool
) -> None:
    monkeypatch.setattr(workers, "gpus_of_ray", lambda: gpus)
    with caplog.at_level("WARNING"):
        assert workers.choose_workers(TrainingSpec(num_workers=3)).workers == 3
    assert ("training on CPUs: 1 GPU for 3 workers" in caplog.text) is is_warned
