"""A small language model of random weights, in the form that the engine reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino._offline_transformations import apply_make_stateful_transformation
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
)
from transformers.cache_utils import Cache

END, PAD, USER, ASSISTANT = "<|endoftext|>", "<|pad|>", "<|user|>", "<|assistant|>"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTEXT = 256
ATTENTION = "tests_openvino"
ENGINE = "engine.json"
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@dataclass(frozen=True)
class Made:
    """A model: transformers' side of it, and the folder that the engine reads."""

    folder: Path
    model: Any
    tokenizer: Any

    def greedy(self, prompt: str, tokens: int) -> str:
        """Return transformers' answer."""
        torch.set_num_threads(1)
        ids = self.ids(prompt)
        with torch.no_grad():
            answer = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=1,
            )
        return str(self.tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True))

    def ids(self, prompt: str) -> torch.Tensor:
        return self.tokenizer(prompt, return_tensors="pt").input_ids


def make(folder: Path, text: str, **changes: Any) -> Made:
    """Train a tokenizer on the text, draw weights, and write everything to the folder."""
    tokenizer = byte_tokenizer(text, changes.pop("vocab_size", 600))
    torch.manual_seed(changes.pop("seed", 0))
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=1,
        **(sizes | changes),
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    save(folder, model, tokenizer)
    model.set_attn_implementation("eager")
    return Made(folder, model, tokenizer)


def save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a new folder as the engine and transformers read it."""
    folder.mkdir(parents=True)
    write(folder, stateful(model), tokenizer)
    (folder / ENGINE).write_text(json.dumps(EXACT))
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_tokenizer(text: str, vocab_size: int = 600) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
    )


def write(folder: Path, graph: ov.Model, tokenizer: Any) -> None:
    ov.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)
    encode, decode = convert_tokenizer(tokenizer, with_detokenizer=True, skip_special_tokens=True)
    ov.save_model(encode, folder / "openvino_tokenizer.xml")
    ov.save_model(decode, folder / "openvino_detokenizer.xml")


def stateful(model: Any) -> ov.Model:
    """Return the model as OpenVINO's graph, with keys and values of the past as its state."""
    AttentionInterface.register(ATTENTION, _attention)
    model.set_attn_implementation(ATTENTION)
    config = model.config
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    width = config.hidden_size // config.num_attention_heads
    pairs = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    past = [torch.randn(2, heads, 2, width) for _ in pairs]
    example = (
        torch.zeros(2, 3, dtype=torch.long),
        torch.ones(2, 5, dtype=torch.long),
        torch.arange(2, 5).expand(2, 3).contiguous(),
        *past,
    )
    shapes = [[-1, -1]] * 3 + [[-1, heads, -1, width]] * len(past)
    with torch.no_grad():
        graph = ov.convert_model(
            _Plain(model), example_input=example, input=[ov.PartialShape(each) for each in shapes]
        )
    before = [f"past_key_values.{pair}" for pair in pairs]
    after = [f"present.{pair}" for pair in pairs]
    names = ["input_ids", "attention_mask", "position_ids", *before]
    for port, name in zip(graph.inputs, names, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(graph.outputs, ["logits", *after], strict=True):
        port.get_tensor().set_names({name})
    _reorder(graph, before)
    apply_make_stateful_transformation(graph, dict(zip(before, after, strict=True)))
    _begin_empty(graph)
    return graph


def _reorder(graph: ov.Model, names: Sequence[str]) -> None:
    """Let beams take the past of each other."""
    beams = ops.parameter([-1], dtype=np.int32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    parameters = {p.output(0).get_any_name(): p for p in graph.get_parameters()}
    graph.add_parameters([beams])
    for name in names:
        users = parameters[name].output(0).get_target_inputs()
        gathered = ops.gather(parameters[name], beams, ops.constant(0, dtype=np.int64))
        for user in users:
            user.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()


def _begin_empty(graph: ov.Model) -> None:
    """Give every state its first value, without which the engine does not take the graph."""
    ids = next(p for p in graph.get_parameters() if "input_ids" in p.output(0).get_names())
    shape = ops.shape_of(ids, output_type="i64")
    batch = ops.gather(shape, ops.constant([0]), ops.constant(0))
    for op in graph.get_ops():
        if op.get_type_name() == "ReadValue":
            sizes = [size.min_length for size in op.get_output_partial_shape(0)]
            rest = [ops.constant(np.array([n], dtype=np.int64)) for n in (sizes[1], 0, sizes[3])]
            kind = op.get_output_element_type(0).to_dtype()
            empty = ops.broadcast(ops.constant(0.0, dtype=kind), ops.concat([batch, *rest], axis=0))
            op.set_arguments([empty])
    graph.validate_nodes_and_infer_types()


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (_expanded(each, groups) for each in (key, value))
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    return found.transpose(1, 2).contiguous(), None


def _expanded(heads: torch.Tensor, groups: int) -> torch.Tensor:
    batch, count, length, width = heads.shape
    wide = heads.unsqueeze(2).expand(batch, count, groups, length, width)
    return wide.reshape(batch, count * groups, length, width)


class _Concatenating(Cache):
    """A cache whose past is given and whose present is read."""

    def __init__(self, pasts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__(layers=[])
        self.pasts = list(pasts)
        self.present: list[Any] = [None] * len(self.pasts)

    def update(self, key: Any, value: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        before = self.pasts[layer_idx]
        self.present[layer_idx] = tuple(
            torch.cat([old, new], dim=2) for old, new in zip(before, (key, value), strict=True)
        )
        return self.present[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.pasts[0][0].shape[2]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def __len__(self) -> int:
        return len(self.pasts)


class _Plain(torch.nn.Module):
    """The model with its past as plain inputs and its present as plain outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
        pairs = [(past[index], past[index + 1]) for index in range(0, len(past), 2)]
        cache = _Concatenating(pairs)
        known, new = past[0].shape[2], input_ids.shape[1]
        causal = torch.arange(0, known + new)[None, :] <= torch.arange(known, known + new)[:, None]
        seen = attention_mask[:, None, None, :].bool() & causal[None, None]
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        answer = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        return (answer.logits, *(each for pair in cache.present for each in pair))
