"""Converts a transformers decoder, with its cache, to a stateful OpenVINO model (IR).

OpenVINO GenAI serves the model with continuous batching. Inputs: `input_ids` and `position_ids`
`[batch, new tokens]`, `attention_mask` `[batch, all tokens]`, int64, and `beam_idx` `[batch]`,
int32. Output: `logits`, `[batch, new tokens, vocabulary]`, float32. Keys and values are state.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, cat, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from millrace.export.openvino.decoder_attention import (
    Attention,
    attending,
    other_kind,
    refusal,
    unlike,
)
from millrace.models.common.errors import InputError
from millrace.models.common.quiet import disable_openvino_telemetry, quiet


class Concatenating(Cache):
    """A key-value cache that concatenates new keys and values to past ones.

    Args:
        pasts: past keys and values of each layer, `[batch, heads, tokens, width]`; empty for no
            past.

    Attributes:
        present: keys and values of each updated layer, past and new together.
    """

    def __init__(self, pasts: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        super().__init__(layers=[])
        self.pasts = tuple(pasts)
        self.present: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Add the new keys and values of a layer, and return all of them; call once per layer."""
        if self.pasts:
            keys, values = self.pasts[layer_idx]
            key_states, value_states = cat([keys, key_states], 2), cat([values, value_states], 2)
        self.present[layer_idx] = key_states, value_states
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0, *_: Any) -> int:
        """Return the number of past tokens."""
        return self.pasts[0][0].shape[2] if self.pasts else 0

    def get_query_offset(self, layer_idx: int | None = 0) -> int:
        """Return the position of the first new token."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of tokens to attend to, and the position of the first of them."""
        return self.get_seq_length() + query_length, 0


BATCH, PAST, NEW = 2, 2, 3
"""Sizes of the example inputs for tracing; these dimensions are dynamic in the OpenVINO model."""
ALSO = (
    "a decoder with plain causal attention in every layer, such as llama, qwen, gpt2, phi, or "
    "mistral without a window"
)


@dataclass(frozen=True)
class Widths:
    """The sizes of one layer's keys and values.

    Attributes:
        key: number of key heads, and their width.
        value: number of value heads, and their width.
    """

    key: tuple[int, int]
    value: tuple[int, int]


class Traced(nn.Module):
    """A decoder with past keys and values as inputs and outputs, for tracing.

    Args:
        model: the decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the logits, then all keys and all values of each layer."""
        cache = Concatenating(list(zip(past[::2], past[1::2], strict=True)))
        mask = causal_mask(attention_mask, past[0].shape[2], input_ids.shape[1])
        answer = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        kept = [each for layer in sorted(cache.present) for each in cache.present[layer]]
        return answer.logits, *kept


def causal_mask(attention_mask: Tensor, past: int, new: int) -> Tensor:
    """Return the mask to add to the scores: `[batch, 1, new, past + new]`, 0 for visible tokens.

    Args:
        attention_mask: `[batch, past + new]`, 1 for a token and 0 for padding.
        past: number of past tokens.
        new: number of new tokens.
    """
    queries, keys = torch.arange(past, past + new), torch.arange(0, past + new)
    seen = attention_mask[:, None, None, :].bool() & (keys[None] <= queries[:, None])[None, None]
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def to_ir(model: PreTrainedModel) -> Any:
    """Return a decoder as an `openvino.Model` with state.

    Args:
        model: a causal language model in float32; it is not changed.

    Raises:
        InputError: the engine cannot compute the same as this decoder; the message has the reason.
    """
    disable_openvino_telemetry()
    import openvino

    layers = int(model.config.get_text_config().num_hidden_layers)
    with quiet("transformers", "nncf", "openvino"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        widths = _find_widths(model, layers)
        with attending(model, Attention()):
            past = [
                torch.zeros(BATCH, heads, PAST, width)
                for layer in widths
                for heads, width in (layer.key, layer.value)
            ]
            try:
                ir = openvino.convert_model(
                    Traced(model),
                    example_input=(*_example(), *past),
                    input=[openvino.PartialShape(shape) for shape in _shapes(widths)],
                )
            except RuntimeError as error:
                raise _refused(model, f"OpenVINO cannot convert it: {_first(error)}") from error
    attentions = [op for op in ir.get_ops() if "ScaledDotProduct" in op.get_type_name()]
    if reason := other_kind(layers, len(widths), len(attentions)):
        raise _refused(model, reason)
    made = make_stateful(ir, layers)
    if (paged := count_paged_attentions(made)) != layers:
        raise _refused(model, f"OpenVINO's paged attention supports {paged} of its {layers} layers")
    return made


def _find_widths(model: PreTrainedModel, layers: int) -> list[Widths]:
    """Run the decoder once, and return the sizes of its layers' keys and values.

    Raises:
        InputError: the engine cannot serve this decoder.
    """
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    takes = signature(model.forward).parameters
    if reason := unlike(kinds, takes, bool(getattr(config, "alibi", False))):
        raise _refused(model, reason)
    mask = causal_mask(torch.ones(1, NEW), 0, NEW)
    attention, cache = Attention(mask), Concatenating()
    ids = torch.zeros(1, NEW, dtype=torch.long)
    try:
        with attending(model, attention):
            model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=torch.arange(NEW)[None],
                past_key_values=cache,
                use_cache=True,
            )
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # a layer needs another kind of cache or its own mask, or accepts no positions
        raise _refused(
            model, f"it fails with a plain key-value cache, mask and position ids: {_first(error)}"
        ) from error
    context = getattr(config, "max_position_embeddings", None)
    reason = other_kind(layers, len(cache.present)) or refusal(layers, context, attention.seen)
    if reason:
        raise _refused(model, reason)
    return [Widths(_size(k), _size(v)) for _, (k, v) in sorted(cache.present.items())]


def _size(kept: Tensor) -> tuple[int, int]:
    return kept.shape[1], kept.shape[3]


def _example() -> tuple[Tensor, Tensor, Tensor]:
    positions = torch.arange(PAST, PAST + NEW).expand(BATCH, NEW).contiguous()
    ids = torch.zeros(BATCH, NEW, dtype=torch.long)
    return ids, torch.ones(BATCH, PAST + NEW, dtype=torch.long), positions


def _shapes(widths: Sequence[Widths]) -> list[list[int]]:
    kept = [pair for layer in widths for pair in (layer.key, layer.value)]
    return [[-1, -1]] * 3 + [[-1, heads, -1, width] for heads, width in kept]


def _first(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _refused(model: PreTrainedModel, reason: str) -> InputError:
    kind = model.config.model_type
    return InputError(
        f"a decoder of type {kind} cannot be served with continuous batching: {reason}",
        seen=kind,
        valid=ALSO,
    )


FIRST = ("input_ids", "attention_mask", "position_ids")
BEAM = "beam_idx"


def make_stateful(ir: Any, layers: int) -> Any:
    """Name the inputs and outputs, and turn the keys and values into state, in place.

    The engine looks up these names. `beam_idx` selects rows of the past. Every state has an initial
    value: no tokens, with the batch size of the input. Without an initial value, the engine fails
    on an undeclared parameter.

    Args:
        ir: an OpenVINO model. Its inputs are `FIRST`, then the keys and values of each layer. Its
            outputs are the logits, then the keys and values of each layer.
        layers: number of the decoder's layers.
    """
    from openvino._offline_transformations import apply_make_stateful_transformation

    states = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    pasts, presents = [f"past_key_values.{n}" for n in states], [f"present.{n}" for n in states]
    parameters = dict(zip((*FIRST, *pasts), ir.get_parameters(), strict=True))
    for name, parameter in parameters.items():
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
    for name, output in zip(("logits", *presents), ir.outputs, strict=True):
        output.get_tensor().set_names({name})
    _choose_rows(ir, [parameters[name] for name in pasts])
    apply_make_stateful_transformation(ir, dict(zip(pasts, presents, strict=True)))
    _start_empty(ir, parameters[FIRST[0]])
    ir.validate_nodes_and_infer_types()
    return ir


def _choose_rows(ir: Any, pasts: list[Any]) -> None:
    """Insert a Gather by `beam_idx` after each input of past keys or values."""
    from openvino import opset13 as ops

    beam = ops.parameter([-1], dtype=np.int32, name=BEAM)
    beam.output(0).get_tensor().set_names({BEAM})
    ir.add_parameters([beam])
    for past in pasts:
        users = past.output(0).get_target_inputs()
        chosen = ops.gather(past, beam, ops.constant(0, dtype=np.int64))
        for user in users:
            user.replace_source_output(chosen.output(0))
    ir.validate_nodes_and_infer_types()


def _start_empty(ir: Any, input_ids: Any) -> None:
    """Set the initial value of each state to no tokens, `[batch, heads, 0, width]`."""
    from openvino import opset13 as ops

    shape = ops.shape_of(input_ids, output_type="i64")
    batch = ops.gather(shape, ops.constant([0]), ops.constant(0))
    for op in ir.get_ops():
        if op.get_type_name() == "ReadValue":
            _, heads, _, width = op.get_output_partial_shape(0)
            lengths = (heads.get_length(), 0, width.get_length())
            sizes = [batch, *(ops.constant(np.array([n], np.int64)) for n in lengths)]
            zero = ops.constant(0.0, dtype=op.get_output_element_type(0).to_dtype())
            op.set_arguments([ops.broadcast(zero, ops.concat(sizes, axis=0))])


def count_paged_attentions(ir: Any) -> int:
    """Return how many layers the engine's own transformation turns into paged attention.

    Return 0 if the transformation fails.
    """
    from openvino._offline_transformations import paged_attention_transformation

    tried = ir.clone()
    try:
        paged_attention_transformation(tried)
    except RuntimeError:
        return 0
    return sum(op.get_type_name() == "PagedAttentionExtension" for op in tried.get_ops())
