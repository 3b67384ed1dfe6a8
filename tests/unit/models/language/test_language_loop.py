import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from millrace.models.language.decoder_loop import EXPORTED, LanguageJob, train
from millrace.models.language.parallel import strategy_of
from millrace.models.language.recipe import DecoderSpec, Lora, Recipe
from millrace.models.training.train_job import Write
from tests.sequences_in_memory import SequencesInMemory

RECIPE = Recipe(epochs=2, batch_size=2, log_steps=1, learning_rate=1e-2, weight_decay=0.0)


class Told:
    """Keeps what is reported and the checkpoints; ends the run as a killed worker would."""

    def __init__(self, folder: Path, stop: int | None = None) -> None:
        self.folder, self.stop = folder, stop
        self.metrics: list[dict[str, Any]] = []
        self.last: Path | None = None

    def __call__(self, metrics: dict[str, Any], write: Write | None) -> None:
        self.metrics.append(metrics)
        if write is not None:
            self.last = self.folder / f"step-{metrics['step']}"
            self.last.mkdir(parents=True)
            write(self.last)
        if metrics["step"] == self.stop:
            raise InterruptedError

    @property
    def losses(self) -> list[float]:
        return [each["loss"] for each in self.metrics]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        assert self.last is not None
        return load_file(self.last / EXPORTED / "model.safetensors")


@pytest.fixture
def job(tiny: DecoderSpec, counting: Callable[..., SequencesInMemory]) -> LanguageJob:
    return LanguageJob(tiny, RECIPE, counting(21), counting(5, seed=1))


def changed(job: LanguageJob, **recipe: Any) -> LanguageJob:
    return dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, **recipe))


def run(job: LanguageJob, told: Told, start: Path | None = None) -> Told:
    train(job, strategy_of("ddp", torch.device("cpu")), start, told)
    return told


def test_it_learns_and_measures_what_was_held_out(job: LanguageJob, tmp_path: Path) -> None:
    told = run(changed(job, epochs=8), Told(tmp_path))
    first, last = told.metrics[10], told.metrics[-1]
    assert last["epoch"] == 8
    assert last["perplexity"] < first["perplexity"] * 0.7
    assert {"tokens_per_second", "learning_rate", "grad_norm", "peak_memory_mib"} <= set(last)
    assert "mfu" not in last


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_stopped_ends_with_the_same_weights(
    job: LanguageJob, tiny: DecoderSpec, tmp_path: Path, optimizer: str
) -> None:
    spec = dataclasses.replace(tiny, params={**tiny.params, "attention_dropout": 0.2})
    job = dataclasses.replace(changed(job, checkpoint_steps=4, optimizer=optimizer), decoder=spec)
    whole = run(job, Told(tmp_path / "whole"))
    stopped = Told(tmp_path / "stopped", stop=9)
    with pytest.raises(InterruptedError):
        run(job, stopped)
    assert stopped.last is not None
    assert stopped.last.name == "step-8"
    torch.manual_seed(99)
    rest = run(job, Told(tmp_path / "rest"), stopped.last)
    assert rest.losses == whole.losses[8:]
    assert rest.metrics[0]["began_at"] == 8
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, rest.weights[name]), name


def test_no_sequence_is_seen_twice_nor_left_out_over_a_stop(
    job: LanguageJob, tmp_path: Path
) -> None:
    job = dataclasses.replace(changed(job, checkpoint_steps=4, epochs=1), trace=tmp_path)
    stopped = Told(tmp_path / "stopped", stop=4)
    with pytest.raises(InterruptedError):
        run(job, stopped)
    # another size of step, as another number of workers has it
    run(changed(job, batch_size=3), Told(tmp_path / "rest"), stopped.last)
    lines = (tmp_path / "rank-0.jsonl").read_text().splitlines()
    positions = [position for line in lines for position in json.loads(line)["positions"]]
    assert sorted(positions) == list(range(21))


def test_micro_steps_make_the_step_that_one_batch_makes(job: LanguageJob, tmp_path: Path) -> None:
    one = run(changed(job, batch_size=4), Told(tmp_path / "one"))
    two = run(changed(job, gradient_accumulation_steps=2), Told(tmp_path / "two"))
    assert one.losses == pytest.approx(two.losses, abs=1e-4)


def test_gradient_checkpointing_changes_no_step(job: LanguageJob, tmp_path: Path) -> None:
    plain = run(changed(job, epochs=1), Told(tmp_path / "plain"))
    saving = run(changed(job, epochs=1, gradient_checkpointing=True), Told(tmp_path / "saving"))
    assert plain.losses == pytest.approx(saving.losses, abs=1e-6)


def test_half_precision_learns_nearly_the_same(job: LanguageJob, tmp_path: Path) -> None:
    whole, half = run(job, Told(tmp_path / "whole")), Told(tmp_path / "half")
    train(job, strategy_of("ddp", torch.device("cpu"), torch.bfloat16), None, half)
    assert half.losses == pytest.approx(whole.losses, abs=0.05)
    assert half.losses != whole.losses
    assert {each.dtype for each in half.weights.values()} == {torch.float32}


def test_adapters_alone_are_trained_and_resumed(job: LanguageJob, tmp_path: Path) -> None:
    base = run(changed(job, epochs=1), Told(tmp_path / "base"))
    assert base.last is not None
    spec = dataclasses.replace(
        job.decoder, params={}, pretrained=str(base.last / EXPORTED), lora=Lora(r=4)
    )
    job = dataclasses.replace(changed(job, checkpoint_steps=4), decoder=spec)
    whole = run(job, Told(tmp_path / "whole"))
    stopped = Told(tmp_path / "stopped", stop=8)
    with pytest.raises(InterruptedError):
        run(job, stopped)
    rest = run(job, Told(tmp_path / "rest"), stopped.last)
    assert rest.losses == whole.losses[8:]
    assert whole.metrics[-1]["perplexity"] < base.metrics[-1]["perplexity"]
    assert torch.equal(
        rest.weights["model.embed_tokens.weight"], base.weights["model.embed_tokens.weight"]
    )
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(rest.weights[name], base.weights[name])


def test_a_loss_that_is_no_number_ends_the_run(job: LanguageJob, tmp_path: Path) -> None:
    broken = changed(job, learning_rate=1e30, max_grad_norm=None, warmup_ratio=0.0)
    told = run(broken, Told(tmp_path))
    assert not torch.isfinite(torch.tensor(told.losses[-1]))
    assert told.last is None
