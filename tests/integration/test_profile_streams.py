"""The profile of a model that streams its answers, on a Triton of its own."""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile import profiler, proof, stream_search
from millrace.serving.profile.profiled_model import MODEL
from millrace.serving.profile.profiler import Profiler
from millrace.serving.profile.proof import schedule_for
from millrace.serving.profile.stream_search import StreamConfiguration
from millrace.serving.profile.stream_workload import StreamTarget, StreamWorkload
from millrace.serving.profile.workload import Effort
from millrace.serving.triton.open_streams import StreamedLoad, send_streams
from millrace.serving.triton.version_folder import Artifact
from tests.language_model import make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

TEXT = Path(os.__file__).read_text()
CONTEXT = 128
GOAL = SloSpec(
    rate=50, ttft_p99_ms=5000, tpot_p99_ms=2000, prompt_tokens={16: 1, 32: 1}, answer_tokens=8
)
SHORT: dict[Any, dict[str, object]] = {
    stream_search: {"REQUESTS": 50},
    StreamWorkload: {"effort": Effort(shortlist=1, probes=2, longest=1.0)},
    # Less confidence takes fewer requests; what it must be is in the unit tests.
    profiler: {
        "FEWEST_PROBED": 20,
        "LOOKS": (0, 2),
        "schedule_for": partial(schedule_for, confidence=0.5),
    },
    proof: {"correlation_length": lambda _: 1.0},
}


class Kept:
    """Keeps what was measured."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def read(self, name: str, parse: Callable[[Any], Any]) -> Any:
        return parse(self.values[name]) if name in self.values else None

    def write(self, name: str, measured: Any) -> None:
        self.values[name] = measured


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> StreamWorkload:
    folder = make(
        tmp_path_factory.mktemp("made") / "model", TEXT, max_position_embeddings=CONTEXT
    ).folder
    serving = ServingSpec(generation=GenerationSpec(max_num_seqs=4))
    files = {each.name: each for each in folder.iterdir()}
    artifact = Artifact(files, digest_of_all(files), "language", serving=serving)
    texts = [TEXT[at : at + 300] for at in range(0, 9000, 300)]
    return StreamWorkload(artifact, texts, GOAL, Kept(), lambda _: None)


@pytest.fixture(scope="module")
def target(workload: StreamWorkload) -> Iterator[StreamTarget]:
    with workload.running() as found:
        yield found


def test_a_profile_finds_and_proves_a_number_of_answers(
    workload: StreamWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, values in SHORT.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    found = Profiler(workload, GOAL, lambda _: None).run()
    assert {each.bound: each.holds for each in found.proofs} == {
        "ttft_p99_ms": True,
        "tpot_p99_ms": True,
    }
    assert found.current.configuration == StreamConfiguration(4)
    assert found.chosen.measured
    assert found.figures["mean_answer_tokens"] == 8
    assert found.figures["mean_prompt_tokens"] == pytest.approx(24, rel=0.3)
    assert found.figures["tpot_with_first_token_p99_ms"] > 0
    # the measurements of an interrupted profile are used again
    said: list[str] = []
    again = StreamWorkload(workload.artifact, (), GOAL, workload.kept, said.append)
    assert len(again.rank()) == len(found.considered)
    assert said == ["steps: measured before"]


def test_times_are_of_each_answer(target: StreamTarget) -> None:
    load = target.send_at_once([16, 16, 32], [1, 8, 30])
    assert load.answers.tolist() == [1, 8, 30]
    assert load.prompts[2] > load.prompts[0] > 5
    assert (load.first >= load.sent).all()
    assert load.last[2] > load.first[2]
    assert load.tpot[0] == 0


def test_an_answer_that_does_not_fit_is_refused_before_anything_is_measured(
    target: StreamTarget,
) -> None:
    goal = SloSpec(rate=1, ttft_p99_ms=100, prompt_tokens=100, answer_tokens=64)
    with pytest.raises(InputError, match=r"cannot answer the requests of serving.slo"):
        StreamTarget(target.triton, target.texts, goal).calibrate()


def test_a_look_ends_a_run_and_errors_have_no_times(target: StreamTarget) -> None:
    seen: list[int] = []

    def after(load: StreamedLoad) -> bool:
        seen.append(len(load.due))
        return True

    due, requests = np.arange(40) * 0.02, [("import os", 2)] * 40
    load = send_streams(target.triton.endpoint, MODEL, due, requests, looks=[5], is_decided=after)
    assert seen == [5]
    assert 5 <= len(load.due) < 40
    assert np.isfinite(load.ttft).all()
    wrong = send_streams(target.triton.endpoint, "none", np.zeros(2), [("a", 1)] * 2)
    assert np.isinf(wrong.ttft).all()
    assert np.isinf(wrong.tpot).all()
    assert sum(wrong.errors.values()) == 2
