"""The language models of the benchmarks: of random parameters, each with one that drafts.

Of random weights no layer does more than another, and a draft would guess nothing. So all layers
but the first add little to what the model says (`WEIGHT`), and the draft is the first one with the
same embedding and head: a stand-in for a trained pair, whose guesses may be better or worse.
"""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from millrace.export.language.language_variants import LANGUAGE_FORMS
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.serving.triton.language.draft_files import DRAFT
from tests.language_model import byte_tokenizer, save

LIMITS = Limits(300, 8 * 2**30)
VOCABULARY = 4096
WEIGHT = 0.03
"""What the outputs of the later layers are multiplied by."""


@dataclass(frozen=True)
class Shape:
    """A Llama, in the words of transformers."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_hidden_layers: int
    max_position_embeddings: int = 1024


SMALL = Shape(640, 1760, 10, 5, 6)
"""33 million parameters."""
SERVED = Shape(576, 1536, 9, 3, 30)
"""The layers of SmolLM2-135M, about the smallest model that is served: 111 million parameters, as
its vocabulary here is smaller."""


@dataclass(frozen=True)
class Written:
    """The model, as the engine reads it and as transformers does.

    Attributes:
        folder: a version's folder; what drafts is in `draft` of `drafted`.
        drafted: the same with the draft.
        int8: the form with weights of 8 bits, as the line makes it.
        model: of transformers.
        tokenizer: of transformers.
        text: what the tokens were learnt from.
    """

    folder: Path
    drafted: Path
    int8: Path
    model: Any
    tokenizer: Any
    text: str


def written(folder: Path, shape: Shape) -> Written:
    """Make a model and its draft in a folder of their own; the same weights every time."""
    text = "".join(file.read_text() for file in sorted(Path(os.__file__).parent.glob("[a-d]*.py")))
    tokenizer = byte_tokenizer(text, VOCABULARY)
    model = _random(shape, len(tokenizer))
    draft = _random(replace(shape, num_hidden_layers=1), len(tokenizer))
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(WEIGHT)
            layer.mlp.down_proj.weight.mul_(WEIGHT)
    draft.load_state_dict(model.state_dict(), strict=False)
    plain, drafted, int8 = folder / "plain", folder / "drafted", folder / "int8"
    save(plain, model, tokenizer)
    save(drafted / DRAFT, draft, tokenizer)
    for file in plain.iterdir():
        (drafted / file.name).symlink_to(file)
    form = LANGUAGE_FORMS["openvino-int8"]
    run_in_subprocess(form.program, [plain, int8, *form.options], LIMITS)
    model.set_attn_implementation("sdpa")
    return Written(plain, drafted, int8, model, tokenizer, text)


def _random(shape: Shape, vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
        **asdict(shape),
    )
    made = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return made.eval()


def engine(folder: Path, sequences: int, *, caching: bool = True) -> Any:
    """Open the engine in this process, as the backend does; with the draft if the folder has one.

    Args:
        folder: the version's.
        sequences: answers at a time.
        caching: of prefixes; not with a draft.
    """
    import openvino_genai as genai

    schedule = genai.SchedulerConfig()
    schedule.cache_size, schedule.max_num_seqs = 1, sequences
    schedule.enable_prefix_caching = caching
    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    options: dict[str, Any] = dict(exact)
    if (folder / DRAFT).is_dir():
        options["draft_model"] = genai.draft_model(str(folder / DRAFT), "CPU", **exact)
    return genai.ContinuousBatchingPipeline(str(folder), schedule, "CPU", options)
