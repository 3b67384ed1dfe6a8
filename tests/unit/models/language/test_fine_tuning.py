"""Adapters learn answers from rows, and what is exported is the model with its adapter."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from millrace.export.language.token_pieces import MeasuredText
from millrace.export.language.transformers_reference import scored
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.config.training_spec import ModelSpec, TokenizerSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.corpus.sequences import StoredSequences
from millrace.models.language.corpus.token_table import TokenTable, make_token_table
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.models.language.decoder_loop import EXPORTED, LanguageJob, train
from millrace.models.language.held_out import base_perplexity
from millrace.models.language.parallel import strategy_of
from millrace.models.language.recipe import DecoderSpec, Lora, Recipe
from millrace.models.training.train_job import Write
from millrace.tasks.kinds.language.language_train import select_pieces, yield_measured_pieces

CONTEXT = 32
SHARES = SplitSpec(train=0.6, validation=0.2, test=0.2)
NEAR = {"atol": 1e-4, "rtol": 1e-4}
"""Of logits: merging adds the adapter's product to the weights, and sums round otherwise."""
VERBS, NOUNS = ("add", "get", "set", "drop", "sort"), ("node", "name", "value", "list", "item")


def rows(answer: str) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{verb} {noun} {n}",
            "prompt": f"def {verb}_{noun}{n}():\n",
            "text": answer.format(verb=verb, noun=noun),
        }
        for verb in VERBS
        for noun in NOUNS
        for n in range(4)
    ]


@dataclass
class Tuned:
    """A base, and what adapters made of it."""

    base: Path
    checkpoint: Path
    spec: DecoderSpec
    test: StoredSequences

    @property
    def merged(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self.checkpoint)

    @property
    def adapted(self) -> Any:
        base = AutoModelForCausalLM.from_pretrained(self.base)
        return PeftModel.from_pretrained(base, self.checkpoint / "adapter")


@pytest.fixture
def tuned(
    tiny: DecoderSpec,
    bpe: LanguageTokenizer,
    ingest_text: Callable[..., Snapshot],
    embedded: Installation,
    tmp_path: Path,
) -> Tuned:
    bpe.write(tmp_path / "tokenizer")
    tiny = replace(tiny, vocab_size=bpe.vocab_size, context=CONTEXT, eos_token_id=bpe.end)

    def tokens_of(answer: str, **model: Any) -> TokenTable:
        columns = {"prompt": {"type": "text"}, "text": {"type": "text"}}
        snapshot = ingest_text(rows(answer), features="prompt", key="id", columns=columns)
        return make_token_table(snapshot, SHARES, ModelSpec(**model), tmp_path, embedded)

    own = TokenizerSpec(source="tokenizer", max_tokens=CONTEXT)
    base = trained(tiny, tokens_of("{noun} it", tokenizer=own), tmp_path / "base")
    bases = TokenizerSpec(max_tokens=CONTEXT)
    tokens = tokens_of("{verb} it", pretrained=str(base), tokenizer=bases)
    text = "def drop_name2():\n    return 31"
    assert tokens.tokenizer().plain.encode(text).ids == bpe.plain.encode(text).ids
    spec = replace(tiny, params={}, pretrained=str(base), lora=Lora(r=8, alpha=16))
    checkpoint = trained(spec, tokens, tmp_path / "tuned")
    return Tuned(base, checkpoint, spec, StoredSequences.of(tokens, "test", tmp_path / "cache"))


def trained(spec: DecoderSpec, tokens: TokenTable, folder: Path) -> Path:
    """Train, and return the folder of the decoder."""
    recipe = Recipe(epochs=100, max_steps=60, batch_size=4, learning_rate=2e-2, weight_decay=0.0)
    split = [StoredSequences.of(tokens, each, folder / "cache") for each in ("train", "validation")]

    def keep(_: dict[str, Any], write: Write | None) -> None:
        if write is not None:
            shutil.rmtree(folder / "last", ignore_errors=True)
            (folder / "last").mkdir(parents=True)
            write(folder / "last")

    job = LanguageJob(spec, recipe, *split, tokenizer=folder.parent / "tokenizer")
    train(job, strategy_of("ddp", torch.device("cpu")), None, keep)
    return folder / "last" / EXPORTED


def test_adapters_lower_the_loss_of_held_out_answers_and_are_what_is_exported(
    tuned: Tuned, tmp_path: Path
) -> None:
    measured = partial(yield_measured_pieces, tuned.test, CONTEXT)
    before = base_perplexity(tuned.spec, measured)
    after = base_perplexity(replace(tuned.spec, pretrained=str(tuned.checkpoint)), measured)
    assert after < before / 4
    # what is told of a base is what its variants would be measured by
    base = AutoModelForCausalLM.from_pretrained(tuned.base).eval()
    with torch.inference_mode():
        pieces = MeasuredText().of(
            select_pieces(tuned.test, 16_384), base.config.vocab_size, CONTEXT
        )
        told = scored(base, pieces, tmp_path / "log_probabilities.npy")
    assert before == pytest.approx(told, rel=1e-4)

    merged, adapted = tuned.merged.eval(), tuned.adapted.eval()
    ids = torch.tensor(tuned.test.sequence(0)[0][None].astype("int64"))
    with torch.inference_mode():
        wanted = adapted(input_ids=ids).logits
        torch.testing.assert_close(merged(input_ids=ids).logits, wanted, **NEAR)
        assert (base(input_ids=ids).logits - wanted).abs().max() > 0.1
        asked = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1}
        greedy = [
            model.generate(ids[:, :8], attention_mask=torch.ones_like(ids[:, :8]), **asked)
            for model in (merged, adapted, base)
        ]
    assert torch.equal(greedy[0], greedy[1])
    assert not torch.equal(greedy[0], greedy[2])
