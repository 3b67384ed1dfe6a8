"""Rows on their way to an engine of vLLM and back, in the shapes that ray.data.llm gives them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import WorkError
from millrace.serving.batch.prompts.prompt_rows import OUTPUT, Prompts, Sampling
from millrace.serving.batch.prompts.vllm_job import (
    build_engine_columns,
    build_output_row,
    split_answers,
)

ROW = {"_row": 3, "_key": "k", "text": "the mill", "tokenized_prompt": [5, 6]}
ENDS = frozenset([0, 9])


def job(**sampling: Any) -> Prompts:
    return Prompts("m", 7, "d", Path("form"), sampling=Sampling(**sampling))


def handed_back(text: str = "turned", tokens: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """What the engine's stage makes of `ROW`, by `vLLMOutputData` and the columns beside it."""
    return {
        **{"_row": 3, "_key": "k", "text": "the mill", "prompt": "", "prompt_token_ids": [5, 6]},
        **{"num_input_tokens": 2, "generated_tokens": list(tokens), "generated_text": text},
        **{"num_generated_tokens": len(tokens), "embeddings": None, "metrics": None},
        **{"logprobs": None, "prompt_logprobs": None, "request_id": 0, "batch_uuid": "b"},
        **{"time_taken_llm": 0.5, "params": "SamplingParams()", "__inference_error__": ""},
    }


def failed(error: str) -> dict[str, Any]:
    """The same where the engine raised: `_generate_with_error_handling`."""
    nothing = {"prompt_token_ids": None, "num_input_tokens": 0, "request_id": -1, "params": ""}
    return {**handed_back("", ()), **nothing, "_row": 4, "__inference_error__": error}


def block(*rows: dict[str, Any]) -> pa.Table:
    """A block of Ray's: every column that any of its rows has, null for the others."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def test_a_greedy_prompt_is_asked_for_without_what_draws() -> None:
    assert build_engine_columns(ROW, job(seed=4, top_k=3, top_p=0.5)) == {
        "sampling_params": {"max_tokens": 256, "temperature": 0.0, "repetition_penalty": 1.0}
    }


def test_what_draws_is_told_with_the_seed_of_the_row() -> None:
    drawn = job(temperature=0.8, seed=4, top_k=3, top_p=0.5)
    words = build_engine_columns(ROW, drawn)["sampling_params"]
    assert {name: words[name] for name in ("temperature", "top_k", "top_p", "seed")} == {
        **{"temperature": 0.8, "top_k": 3, "top_p": 0.5},
        "seed": drawn.seed_of(3),
    }
    assert (
        build_engine_columns({**ROW, "_row": 8}, drawn)["sampling_params"]["seed"] != words["seed"]
    )


def test_a_stop_is_left_in_the_answer_to_be_seen_there() -> None:
    words = build_engine_columns(ROW, job(stop=("a", "b")))["sampling_params"]
    assert (words["stop"], words["include_stop_str_in_output"]) == (["a", "b"], True)


def test_an_answer_becomes_a_row_of_the_output() -> None:
    assert build_output_row(handed_back(), job(), ENDS) == {
        **{"_key": "k", "completion": "turned", "finish_reason": "length", "_row": 3},
        **{"prompt_tokens": 2, "completion_tokens": 2, "model_version": 7},
    }


@pytest.mark.parametrize(
    ("text", "tokens", "stop", "completion", "reason"),
    [
        ("turned", (1, 2), (), "turned", "length"),
        ("turned", (1, 9), (), "turned", "stop"),
        ("turned its wheel", (1, 2), ("its", " wheel"), "turned ", "stop"),
        ("", (), (), "", "length"),
    ],
)
def test_an_answer_ends_with_an_end_or_a_stop_or_by_its_length(
    text: str, tokens: tuple[int, ...], stop: tuple[str, ...], completion: str, reason: str
) -> None:
    found = build_output_row(handed_back(text, tokens), job(stop=stop), ENDS)
    assert (found["completion"], found["finish_reason"]) == (completion, reason)


def test_a_row_that_vllm_refuses_is_dead_and_its_neighbour_answered() -> None:
    good = {**build_output_row(handed_back(), job(), ENDS), "__inference_error__": ""}
    found = split_answers(block(good, failed("VLLMValidationError: too long: by 3")))
    assert found.rows.schema == OUTPUT
    assert found.rows["_row"].to_pylist() == [3]
    assert found.refused.to_pylist() == [
        {
            **{"_row": 4, "_key": "k", "row": '{"prompt": "the mill"}'},
            "reason": "vLLM refuses the prompt: too long: by 3",
        }
    ]


def test_a_block_may_hold_refused_rows_alone_or_nothing() -> None:
    found = split_answers(block(failed("ValueError: no")))
    assert (found.rows.num_rows, found.refused.num_rows) == (0, 1)
    assert found.rows.schema == split_answers(pa.table({})).rows.schema == OUTPUT


@pytest.mark.parametrize("kind", ["EngineGenerateError", "RuntimeError", "QueueOverflowError"])
def test_what_is_not_the_prompts_fault_ends_the_job(kind: str) -> None:
    with pytest.raises(WorkError, match="vLLM failed while answering a prompt") as caught:
        split_answers(block(failed(f"{kind}: CUDA error")))
    assert caught.value.seen == f"{kind}: CUDA error"
