"""A small decoder down the whole line: `run`, `up`, Triton, the door, and a second version."""

import json
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from deltalake import DeltaTable
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from millrace.serving.batch.input.reader import NO_KEY
from millrace.serving.batch.reconcile_rows import DUPLICATE_KEY
from tests.instruct_model import CHATML, CHATS, TURN_END, opened, write_instruct

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
    name: tales
    dataset:
      source: tales.jsonl
      target: text
      features: []
      key: id
      split: {train: 0.8, validation: 0.1, test: 0.1}
    model:
      family: causal_lm
      params:
        architecture: llama
        hidden_size: 32
        intermediate_size: 64
        num_hidden_layers: 2
        num_attention_heads: 4
        num_key_value_heads: 2
      tokenizer: {vocab_size: 300, max_tokens: 64}
    training: {max_steps: 80, batch_size: 8, learning_rate: 0.01, num_workers: 1}
    export: {candidates: [openvino-fp32], max_perplexity_increase: 0.05}
    promotion: auto
"""
FINE_TUNING = """
    name: advice
    dataset:
      source: advice.jsonl
      target: answer
      features: question
      key: id
      columns: {question: {type: text}, answer: {type: text}}
    model:
      family: causal_lm
      pretrained: models:/tales@champion
      lora: {r: 8}
      tokenizer: {max_tokens: 64}
    training: {max_steps: 40, batch_size: 8, learning_rate: 0.01, num_workers: 1}
    export: {candidates: [openvino-fp32]}
"""
ASSISTANT = """
    name: assistant
    dataset: {source: chats.jsonl, target: messages, features: [], key: id}
    model:
      family: causal_lm
      pretrained: ./instruct
      tokenizer: {max_tokens: 128}
    training: {max_steps: 4, batch_size: 4, learning_rate: 0.0001, num_workers: 1}
    export: {candidates: [openvino-fp32]}  # int8 may answer otherwise than transformers
    batch: {prompt: messages, max_dead_letters: 0.5}
    promotion: auto
"""
WHO, DOES = ("the cat", "a robin", "my owl", "one fox"), ("eats", "sees", "likes", "finds")
WHAT = ("an apple", "the moon", "a red pear", "some rain")


@dataclass
class Tales:
    """A pipeline file, its home, and what its first run came to."""

    home: Any
    file: Path
    outcome: dict[str, Any]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.home.environment['MILLRACE_OPENAI_PORT']}/v1"

    def live(self, model: str = "tales") -> dict[str, Any]:
        done = self.home.run("status", "--json")
        served = done.json["served"] if done.code == 0 else []
        return next((each for each in served if each["model"] == model), {"status": done})

    def until_live(
        self, version: int, seconds: float = 120, model: str = "tales"
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (found := self.live(model)).get("version") != version:
            assert time.monotonic() < deadline, found
            time.sleep(1)
        return found


def write_tales(folder: Path) -> Path:
    """Write the texts and the pipeline file; return the latter."""
    told = [f"{who} {does} {what}, and " for who in WHO for does in DOES for what in WHAT]
    rows = [{"id": n, "text": "".join(told[(n * k) % 64] for k in range(1, 9))} for n in range(200)]
    (folder / "tales.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "tales.yaml").write_text(textwrap.dedent(PIPELINE))
    return folder / "tales.yaml"


@pytest.fixture(scope="module")
def tales(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Iterator[Tales]:
    folder = tmp_path_factory.mktemp("tales")
    file = write_tales(folder)
    home = make(folder / "home")
    done = home.run("run", str(file), "--json", timeout=400)
    assert done.code == 0, done.err
    up = home.run("up", "--json", env={"MILLRACE_PIPELINES": str(file)})
    assert up.code == 0, up.err
    try:
        yield Tales(home, file, done.json)
    finally:
        home.run("down")


def test_a_run_beats_the_unigram_and_certifies_its_form(tales: Tales) -> None:
    certificate = tales.outcome["certificate"]
    (exact,) = certificate["forms"]
    assert certificate["passed"] is True
    assert certificate["stages"][0]["perplexity"] < tales.outcome["baselines"]["unigram"]
    assert exact["stage"]["greedy_equal"] == exact["stage"]["prompts"]
    assert abs(exact["stage"]["perplexity_increase"]) < 1e-3
    assert tales.outcome["promotion"]["champion"] is True


def test_its_champion_goes_live_and_goes_on_with_a_text(tales: Tales) -> None:
    tales.until_live(1)
    done = tales.home.run("predict", "tales", "--text", "the cat eats", "--json")
    assert done.code == 0, done.err
    assert done.json["version"] == 1
    assert done.json["output_tokens"] > 0
    streamed = tales.home.run("predict", "tales", "--text", "the cat eats")
    assert streamed.out.rstrip("\n") == done.json["text"].rstrip("\n")
    rows = tales.home.run("predict", "tales", "--rows", "-")
    assert rows.code == 2
    assert "tales continues a text, and does not accept rows" in rows.err


def test_prompts_are_scored_as_the_live_model_answers_them(tales: Tales, tmp_path: Path) -> None:
    tales.until_live(1)
    prompts = [f"{who} {does}" for who in WHO for does in DOES]
    rows = [{"n": n, "prompt": text} for n, text in enumerate([*prompts, "", "the cat " * 100])]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = ["batch:", "  key: n", "  max_dead_letters: 0.2", "  sampling: {max_tokens: 8}"]
    file = tales.file.with_name("nightly.yaml")
    file.write_text("\n".join([tales.file.read_text(), *lines, ""]))
    words = ("score", str(file), "--input", str(tmp_path / "prompts.jsonl"), "--json")
    done = tales.home.run(*words)
    assert done.code == 0, done.err
    assert (done.json["scored"], done.json["dead"]) == (16, 2)
    assert 0 < done.json["tokens_out"] <= 16 * 8
    compared = done.json["agreement"]
    assert (compared["compared"], compared["disagreed"], compared["reason"]) == (8, 0, "")
    table = DeltaTable(done.json["table"]).to_pyarrow_table().to_pylist()
    found = {row["_key"]: row["completion"] for row in table}
    for number in (0, 7):  # greedy, and longer than the eight tokens of the batch
        live = tales.home.run("predict", "tales", "--text", prompts[number], "--json")
        assert live.json["text"].startswith(found[str(number)])
    reasons = DeltaTable(done.json["dead_letters"]).to_pyarrow_table()["reason"].to_pylist()
    assert sorted(reasons) == [
        "prompt is empty",
        "the prompt is longer than the model's context of 64 tokens",
    ]
    assert tales.home.run(*words).json["unchanged"] is True


def test_rows_without_a_prompt_are_told(tales: Tales) -> None:
    done = tales.home.run("score", str(tales.file))
    assert done.code == 2
    assert "missing prompt; there are" in done.err
    assert "batch.prompt" in done.err
    assert "Traceback" not in done.err


def test_the_live_server_is_certified_against_transformers(tales: Tales) -> None:
    tales.until_live(1)
    done = tales.home.run("certify", "tales", "--json")
    assert done.code == 0, done.out + done.err
    live, (exact,) = done.json["certificate"]["live"], done.json["certificate"]["forms"]
    many = live["prompts"]
    assert 32 < many <= 64
    told = f"{many} of {many} prompts alone, {many} of {many} with 32 in flight"
    assert (done.json["as_certified"], done.json["as_transformers"]) == (told, told)
    assert live["perplexity"] == pytest.approx(exact["stage"]["perplexity"], rel=1e-5)
    assert done.json["faults"] == []
    kept = tales.home.path.glob("artifacts/**/certificate-live.json")
    assert [json.loads(file.read_text())["live"] for file in kept] == [live]
    (plan,) = tales.home.path.glob("artifacts/**/plan/plan-live.json")
    quantities = json.loads(plan.read_text())["quantities"]
    assert set(quantities) == {"online_call", "online_unit", "online_memory"}


def test_the_openai_package_is_let_in_by_a_key_of_the_command(tales: Tales) -> None:
    made = tales.home.run("keys", "add", "anna", "--tokens-per-minute", "5000", "--json")
    assert made.code == 0, made.err
    assert made.json["base_url"] == tales.base_url
    with openai.OpenAI(
        base_url=tales.base_url, api_key=made.json["secret"], max_retries=2
    ) as client:
        assert [each.id for each in client.models.list()] == ["tales"]
        answer = client.completions.create(
            model="tales",
            prompt="the cat",
            max_tokens=8,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        assert tales.home.run("keys", "revoke", "anna").code == 0
        time.sleep(1.5)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


@pytest.mark.slow
def test_its_champion_is_fine_tuned_by_adapters_that_are_what_is_exported(tales: Tales) -> None:
    rows = [
        {"id": n, "question": f"{who} {does} {what}?", "answer": f" no, {who} sleeps"}
        for n, (who, does, what) in enumerate(product(WHO, DOES, WHAT))
    ]
    folder = tales.file.parent
    (folder / "advice.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = folder / "advice.yaml"
    file.write_text(textwrap.dedent(FINE_TUNING))
    base = tales.live().get("version") or tales.until_live(1)["version"]
    done = tales.home.run("run", str(file), "--json", timeout=400)
    assert done.code == 0, done.err
    (exact,) = done.json["certificate"]["forms"]
    assert exact["stage"]["perplexity"] < done.json["baselines"]["base"] / 2
    assert exact["stage"]["greedy_equal"] == exact["stage"]["prompts"]
    tags = done.json["version"]["tags"]
    assert tags["millrace.base"] == f"models:/tales/{base}"
    run = done.json["run"]["run_id"]
    (kept,) = (tales.home.path / "artifacts").glob(f"*/{run}/artifacts")
    assert f"revision: {tags['millrace.base_revision']}" in (kept / "pipeline.yaml").read_text()
    assert "base, before training" in (kept / "report.html").read_text()
    golden = json.loads((kept / "golden.json").read_text())
    (start,) = (tales.home.path / "cache" / "tales").glob(f"{base}-checkpoint-*")
    equal = [
        with_adapter(start, kept / "checkpoint", prompt, golden["max_tokens"]) == answer
        for prompt, answer in zip(golden["prompts"], golden["answers"], strict=True)
    ]
    # one may part at a tie: merging rounds
    assert len(equal) >= 5
    assert sum(equal) >= len(equal) - 1


def with_adapter(base: Path, checkpoint: Path, prompt: str, tokens: int) -> str:
    """Return how the base goes on with its adapter beside it, greedily."""
    words = AutoTokenizer.from_pretrained(checkpoint)
    start = AutoModelForCausalLM.from_pretrained(base)
    model = PeftModel.from_pretrained(start, checkpoint / "adapter").eval()
    ids = words(prompt, return_tensors="pt").input_ids
    told = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
    )
    return str(words.decode(told[0, ids.shape[1] :], skip_special_tokens=True))


def test_an_instruct_decoder_goes_from_its_messages_to_the_door(tales: Tales) -> None:
    folder = tales.file.parent
    write_instruct(folder / "instruct", "qwen3", CHATML)
    rows = [{"id": n, "messages": CHATS[n % len(CHATS)]} for n in range(60)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = folder / "assistant.yaml"
    file.write_text(textwrap.dedent(ASSISTANT))
    done = tales.home.run("run", str(file), "--json", timeout=400)
    assert done.code == 0, done.err
    forms = done.json["certificate"]["forms"]
    assert [variant["reason"] for variant in forms] == [None]
    found = tales.until_live(1, model="assistant")
    assert found["version"] == 1
    (kept,) = (tales.home.path / "artifacts").glob(
        f"*/{done.json['run']['run_id']}/artifacts/checkpoint"
    )
    learnt = opened(kept)
    assert learnt.tokenizer.convert_tokens_to_ids(TURN_END) in (
        learnt.model.generation_config.eos_token_id
    )
    asked = [chat[:2] for chat in CHATS]
    wanted = [learnt.chat(chat, 64) for chat in asked]
    assert not any(TURN_END in answer for answer in wanted)
    key = tales.home.run("keys", "add", "ben", "--json").json["secret"]
    with openai.OpenAI(base_url=tales.base_url, api_key=key, max_retries=2) as client:
        for chat, answer in zip(asked, wanted, strict=True):
            told = client.chat.completions.create(model="assistant", messages=chat, temperature=0)
            assert (told.choices[0].message.content, told.choices[0].finish_reason) == (
                *(answer, "stop"),
            )
    inputs = [{"id": n, "messages": chat} for n, chat in enumerate(asked)]
    inputs += [{"id": 0, "messages": asked[1]}, {"messages": asked[1]}]
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, inputs)))
    words = ("score", str(file), "--input", str(folder / "asked.jsonl"), "--json")
    scored = tales.home.run(*words)
    assert scored.code == 0, scored.err
    table = DeltaTable(scored.json["table"]).to_pyarrow_table().to_pylist()
    assert {row["_key"]: row["completion"] for row in table} == {
        str(n): answer for n, answer in enumerate(wanted)
    }
    assert len(table) == len(asked)
    reasons = DeltaTable(scored.json["dead_letters"]).to_pyarrow_table()["reason"].to_pylist()
    assert sorted(reasons) == sorted([DUPLICATE_KEY, NO_KEY])
    compared = scored.json["agreement"]
    assert (compared["disagreed"], compared["reason"]) == (0, ""), compared
    assert compared["compared"] >= len(asked), compared
    lineage = tales.home.run("lineage", "assistant", "--row", "3", "--json")
    assert lineage.code == 0, lineage.err
    certified = tales.home.run("certify", "assistant", "--json")
    assert (certified.code, certified.json["faults"]) == (0, []), certified.err
