"""What is asked of the live model, and what is no such model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.data.schema import Column
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.serving.batch.input.row_sample import Example
from millrace.serving.batch.monitoring.agreement import Difference
from millrace.serving.batch.monitoring.live_model import compare_examples, explain_not_live
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.row_job import RowJob
from millrace.serving.release.release_state import DesiredVersion, Release, ReleaseState
from millrace.serving.triton.server_index import LoadedModel
from millrace.serving.triton.streams.stream_request import Piece
from millrace.serving.triton.streams.stream_request import Sampling as Asked
from millrace.tasks.kinds.graph.graph_batch import LiveRows
from millrace.tasks.kinds.language.language_batch import COMPARED_TOKENS, LivePrompts

WISH = DesiredVersion(3, "d3")
LIVE = ReleaseState(Release("m", "live", 3, "d3"))


def loaded(name: str, *versions: int) -> list[LoadedModel]:
    return [LoadedModel(name, version, "READY") for version in versions]


def test_the_released_version_is_live() -> None:
    assert explain_not_live(loaded("m", 2, 3), LIVE, "m", WISH) == ""


@pytest.mark.parametrize(
    ("index", "standing", "says"),
    [
        ([], LIVE, "m is not live"),
        (loaded("n", 3), LIVE, "m is not live"),
        ([LoadedModel("m", 3, "LOADING")], LIVE, "m is not live"),
        (loaded("m", 3, 4), LIVE, "version 4 is live, not 3"),
        (loaded("m", 2), LIVE, "version 2 is live, not 3"),
        ([*loaded("m", 3), *loaded("m.arms", 3, 4)], LIVE, "a rollout is running"),
        (loaded("m", 3), ReleaseState(), "no release event says"),
        (loaded("m", 3), ReleaseState(Release("m", "live", 3, "other")), "no release event says"),
    ],
)
def test_what_is_another_version_or_in_doubt_is_not_compared(
    index: list[LoadedModel], standing: ReleaseState, says: str
) -> None:
    assert says in explain_not_live(index, standing, "m", WISH)


@dataclass
class Model:
    """Answers by a list: a difference, or an error."""

    told: list[Difference | MillraceError]
    answers: tuple[str, ...] = ()

    def difference(self, example: Example, seconds: float) -> Difference:
        assert seconds > 0
        answer = self.told[int(example.key)]
        if isinstance(answer, MillraceError):
            raise answer
        return answer


def sample(count: int) -> list[Example]:
    return [Example(str(number), pa.record_batch({}), {}) for number in range(count)]


GOOD = Difference(0.0, 0.0)


def test_every_row_of_the_sample_is_asked() -> None:
    other = Difference(1.0, 1.0, "1 here, 2 live")
    assert compare_examples(Model([GOOD, other]), sample(2), 10) == (
        [("0", GOOD), ("1", other)],
        "",
    )


def test_a_row_that_the_live_model_does_not_take_is_left_out_and_told() -> None:
    told: list[Difference | MillraceError] = [InputError("it is too long", seen="9\n10"), GOOD]
    assert compare_examples(Model(told), sample(2), 10) == ([("1", GOOD)], "it is too long: 9")


@pytest.mark.parametrize("kind", [TransientError, WorkError])
def test_a_server_that_goes_away_ends_the_comparison(kind: type[MillraceError]) -> None:
    found = compare_examples(Model([GOOD, kind("it is gone"), GOOD]), sample(3), 10)
    assert found == ([("0", GOOD)], "it is gone")


def test_time_that_is_up_ends_the_comparison() -> None:
    assert compare_examples(Model([GOOD]), sample(1), 0) == (
        [],
        "the time limit of 0 s was reached",
    )


ENCODING = Encoding(
    (Feature("a", "number"), Feature("f", "number")), "t", ("no", "yes"), target_std=2.0
)
ROWS = RowJob("m", 3, "d", Path("m.onnx"), ENCODING, ("id",), (Column("f", "bool"),))


def live_rows(job: RowJob, answer: list[float], asked: list[Any]) -> LiveRows:
    def ask(request: Mapping[str, Array], seconds: float) -> Mapping[str, Array]:
        asked.append((request, seconds))
        return {name: np.array([answer], np.float32) for name in ("probabilities", "prediction")}

    return LiveRows(job, ask)


def test_a_row_is_sent_as_a_client_sends_it() -> None:
    asked: list[Any] = []
    row = pa.record_batch({"id": [1], "a": ["1.5"], "f": ["true"]})
    example = Example("1", row, {"prediction": "yes", "score": 0.75})
    assert live_rows(ROWS, [0.25, 0.75], asked).difference(example, 5.0) == GOOD
    ((request, seconds),) = asked
    assert list(request) == ["features"]
    assert (request["features"].tolist(), request["features"].dtype) == ([[1.5, 1.0]], np.float32)
    assert seconds == 5.0
    assert live_rows(ROWS, [0.75, 0.25], asked).difference(example, 5.0).share == 1


def test_a_number_is_compared_in_the_targets_own_measure() -> None:
    job = replace(ROWS, encoding=replace(ENCODING, labels=()))
    example = Example("1", pa.record_batch({"a": [1], "f": [0]}), {"prediction": 0.0, "score": 0.0})
    assert live_rows(job, [1.5e-4], []).difference(example, 5.0).share == 0
    assert live_rows(job, [2.5e-4], []).difference(example, 5.0).share == 1


def test_a_text_is_sent_as_a_text() -> None:
    asked: list[Any] = []
    tokenizer = train_tokenizer(iter(["a b c"] * 9), 32, 8)
    encoding = Encoding((Feature("t", "text", 8),), "y", ("no", "yes"), tokenizer=tokenizer)
    example = Example("1", pa.record_batch({"t": ["a b"]}), {"prediction": "no", "score": 0.5})
    job = replace(ROWS, encoding=encoding, dataset_columns=())
    live_rows(job, [0.5, 0.5], asked).difference(example, 5.0)
    assert {name: array.tolist() for name, array in asked[0][0].items()} == {"text": [["a b"]]}


PROMPTS = PromptJob(
    *("m", 3, "d", Path("form")),
    sampling=Sampling(max_tokens=100, repetition_penalty=1.5, stop=("END",)),
)


@pytest.mark.parametrize(
    ("text", "reason", "share"),
    [("the moon", "stop", 0), ("the", "length", 0), ("the", "stop", 1), ("my owl", "length", 1)],
)
def test_a_prompt_is_continued_greedily_for_a_while(text: str, reason: str, share: float) -> None:
    asked: list[Any] = []

    def ask(prompt: str, sampling: Asked, seconds: float) -> Piece:
        asked.append((prompt, sampling, seconds))
        return Piece((text,), (reason,), 3, (2,), is_last=True)

    example = Example("1", pa.record_batch({"prompt": ["I see"]}), {"completion": "the moon"})
    assert LivePrompts(PROMPTS, ask).difference(example, 5.0).share == share
    sampling = Asked(
        temperature=0, repetition_penalty=1.5, stop=("END",), max_tokens=COMPARED_TOKENS
    )
    assert asked == [("I see", sampling, 5.0)]
