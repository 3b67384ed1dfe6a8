"""Decoders trained on Ray: every strategy has one curve, and a killed worker changes nothing."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from millrace.models.language.corpus.sequences import Packed, Sequences
from millrace.models.language.decoder_loop import EXPORTED, LanguageJob, train
from millrace.models.language.parallel import strategy_of
from millrace.models.language.recipe import DecoderSpec, Lora, Parallel, Recipe
from millrace.models.ray.cluster import connect_to_ray
from millrace.models.training.event_log import Resumed, TrainEvent, WorkersFailed
from millrace.models.training.train_job import Write
from millrace.models.training.trainer import TrainResult, fit
from tests.sequences_in_memory import SequencesInMemory

VOCAB, CONTEXT, ROWS = 64, 32, 42
SPEC = DecoderSpec(
    VOCAB,
    CONTEXT,
    {
        "architecture": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    eos_token_id=0,
    pad_token_id=1,
)
RECIPE = Recipe(
    batch_size=2, epochs=2, log_steps=1, learning_rate=1e-2, checkpoint_steps=4, threads=1
)
NEAR = 1e-3
"""Of a loss about 4: sums in another order differ in the seventh digit, and AdamW's first steps
make more of it."""


def counting(n: int, seed: int, by: int = 3) -> SequencesInMemory:
    drawn, rows = np.random.default_rng(seed), []
    for _ in range(n):
        lengths: list[int] = []
        while (left := CONTEXT - 4 - sum(lengths)) > 0:
            lengths.append(min(left, int(drawn.integers(1, 20))))
        ids = np.concatenate([drawn.integers(VOCAB) + by * np.arange(k) for k in lengths])
        rows.append(((ids % VOCAB).astype(np.int32), lengths, None))
    return SequencesInMemory(tuple(rows))


@dataclass(frozen=True)
class Alone:
    """A run in this process.

    Attributes:
        history: what was reported of each step.
        exported: folder of the decoder.
    """

    history: Sequence[dict[str, Any]]
    exported: Path


def here(job: LanguageJob, folder: Path) -> Alone:
    """Train in this process."""
    history: list[dict[str, Any]] = []

    def keep(metrics: dict[str, Any], write: Write | None) -> None:
        history.append(metrics)
        if write is not None:
            (folder / str(metrics["step"])).mkdir()
            write(folder / str(metrics["step"]))

    train(job, strategy_of("ddp", torch.device("cpu")), None, keep)
    return Alone(history, folder / str(len(history)) / EXPORTED)


@dataclass
class Runs:
    """Runs of one small decoder, kept by name.

    Attributes:
        folder: where they are.
        events: what was told of each.
    """

    folder: Path
    events: dict[str, list[TrainEvent]] = field(default_factory=dict)
    _alone: "Alone | None" = None
    _done: dict[str, TrainResult] = field(default_factory=dict)

    def of(
        self, name: str, train: Sequences | None = None, spec: DecoderSpec = SPEC, **recipe: Any
    ) -> tuple[TrainResult, Path]:
        trace = self.folder / "traces" / name
        if name not in self._done:
            job = LanguageJob(
                *(spec, replace(RECIPE, **recipe), train or counting(ROWS, 0), counting(6, 1)),
                trace=trace,
            )
            told = self.events.setdefault(name, [])
            self._done[name] = fit(job, self.folder / "runs", name, told.append)
        return self._done[name], trace

    def alone(self) -> "Alone":
        """Return the run of one worker, which needs no Ray: it is in this process."""
        if self._alone is None:
            (self.folder / "alone").mkdir()
            recipe = replace(RECIPE, gradient_accumulation_steps=2)
            job = LanguageJob(SPEC, recipe, counting(ROWS, 0), counting(6, 1))
            self._alone = here(job, self.folder / "alone")
        return self._alone

    def by(self, parallel: Parallel) -> tuple[TrainResult, Path]:
        """Return the run of two workers by a strategy."""
        share = 2 if parallel == "tp" else 1
        return self.of(
            parallel, parallel=parallel, num_workers=2, gradient_accumulation_steps=share
        )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with pytest.MonkeyPatch.context() as patch:
        # As a run has it: a report waits until Ray Train's controller looks, and one comes of
        # every step here.
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        with connect_to_ray("local", 2):
            yield Runs(tmp_path_factory.mktemp("runs"))


def curve(result: TrainResult | Alone) -> list[float]:
    return [report["loss"] for report in result.history]


def weights_of(result: TrainResult | Alone) -> dict[str, torch.Tensor]:
    exported = result.exported if isinstance(result, Alone) else result.checkpoint / EXPORTED
    return load_file(exported / "model.safetensors")


def lines(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in trace.iterdir() for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "parallel",
    [
        "ddp",
        pytest.param("fsdp", marks=pytest.mark.chaos),
        pytest.param("tp", marks=pytest.mark.chaos),
    ],
)
def test_two_workers_have_the_curve_of_one(runs: Runs, parallel: Parallel) -> None:
    alone = runs.alone()
    together, trace = runs.by(parallel)
    assert len(curve(together)) == len(curve(alone)) == 2 * 11
    assert curve(together) == pytest.approx(curve(alone), abs=NEAR)
    assert curve(alone)[-1] < curve(alone)[0] - 0.5
    perplexities = [each.history[-1]["perplexity"] for each in (alone, together)]
    assert perplexities[0] == pytest.approx(perplexities[1], rel=NEAR)
    assert {file.name for file in trace.iterdir()} == {"rank-0.jsonl", "rank-1.jsonl"}
    left, right = weights_of(alone), weights_of(together)
    assert left.keys() == right.keys()
    for key, tensor in left.items():
        # A shard in the wrong place would be off by the spread of the weights, a tenth.
        torch.testing.assert_close(tensor, right[key], atol=0.01, rtol=0)


@pytest.mark.chaos
def test_adapters_are_trained_alike_where_weights_are_sharded(runs: Runs, tmp_path: Path) -> None:
    spec = replace(SPEC, params={}, pretrained=str(runs.alone().exported), lora=Lora(r=4))
    other = counting(ROWS, 0, by=5)
    sharded, _ = runs.of("adapters", other, spec, parallel="fsdp", num_workers=2)
    recipe = replace(RECIPE, gradient_accumulation_steps=2)
    alone = here(LanguageJob(spec, recipe, other, counting(6, 1)), tmp_path)
    losses = curve(alone)
    assert curve(sharded) == pytest.approx(losses, abs=NEAR)
    assert losses[-1] < losses[0] - 0.5
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        folders = (alone.exported, sharded.checkpoint / EXPORTED)
        left, right = (load_file(each / file) for each in folders)
        assert left.keys() == right.keys()
        for key, tensor in left.items():
            torch.testing.assert_close(tensor, right[key], atol=0.01, rtol=0)


def killed_at(call: int, flag: Path) -> Callable[[SequencesInMemory], Sequences]:
    """Return what makes sequences whose reader is killed at a call, once in all."""

    # Inside a function, so that it travels by value: workers cannot import tests.
    @dataclass
    class Killing:
        inner: SequencesInMemory
        calls: int = 0

        def __len__(self) -> int:
            return len(self.inner)

        def sequence(self, position: int) -> Packed:
            self.calls += 1
            if self.calls >= call:
                try:
                    flag.touch(exist_ok=False)
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return self.inner.sequence(position)

    return Killing


@pytest.mark.chaos
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_killed_worker_changes_nothing(runs: Runs, tmp_path: Path, parallel: Parallel) -> None:
    undisturbed, _ = runs.by(parallel)
    # Not at once after the checkpoint of step 4, of which the controller may not know yet.
    step = random.randrange(6, 22)
    make = killed_at(2 * (step - 1) + 1, tmp_path / "killed")
    name = f"{parallel}-killed"
    killed, trace = runs.of(name, make(counting(ROWS, 0)), parallel=parallel, num_workers=2)
    assert (tmp_path / "killed").exists()
    events = runs.events[name]
    assert any(isinstance(event, WorkersFailed) for event in events)
    (resumed,) = [event for event in events if isinstance(event, Resumed)]
    assert killed.recoveries == (resumed.done,)
    assert 4 <= resumed.done < step, f"killed at {step}"
    assert curve(killed) == pytest.approx(curve(undisturbed), abs=1e-6)
    weights = [weights_of(killed), weights_of(undisturbed)]
    for key, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][key], atol=1e-6, rtol=1e-5)
    noted = lines(trace)
    counts = Counter(line["step"] for line in noted)
    # What was done after the checkpoint was undone with the worker, and only that was done again.
    assert all(count == 2 or resumed.done < each <= step for each, count in counts.items())
    last = {(line["step"], tuple(line["positions"])): line for line in noted}
    for epoch in range(2):
        positions = [
            position
            for line in last.values()
            if 11 * epoch < line["step"] <= 11 * (epoch + 1)
            for position in line["positions"]
        ]
        assert sorted(positions) == list(range(ROWS))
