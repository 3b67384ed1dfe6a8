"""A transformers decoder, with its cache, as a stateful OpenVINO model for continuous batching.

Inputs: `input_ids` and `position_ids` `[batch, new tokens]`, `attention_mask` `[batch, all
tokens]`, int64, and `beam_idx` `[batch]`, int32. Output: `logits`, `[batch, new tokens,
vocabulary]`, float32. Keys and values are state.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

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
from millrace.export.openvino.quiet_openvino import send_nothing
from millrace.export.openvino.stateful import made_stateful, paged_attentions
from millrace.models.common.errors import InputError
from millrace.models.common.quiet import quiet


class Concatenating(Cache):
    """Puts new keys and values behind those of the past.

    Args:
        pasts: of each layer, its keys and values, `[batch, heads, tokens, width]`; none at the
            start of a text whose layers are not known yet.

    Attributes:
        present: of each layer, past and new together; so far as it was asked.
    """

    def __init__(self, pasts: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        super().__init__(layers=[])
        self.pasts = tuple(pasts)
        self.present: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values of a layer; it is asked once for each."""
        if self.pasts:
            keys, values = self.pasts[layer_idx]
            key_states, value_states = cat([keys, key_states], 2), cat([values, value_states], 2)
        self.present[layer_idx] = key_states, value_states
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0, *_: Any) -> int:
        """Return the tokens of the past."""
        return self.pasts[0][0].shape[2] if self.pasts else 0

    def get_query_offset(self, layer_idx: int | None = 0) -> int:
        """Return the position of the first new token."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return how many tokens there are to attend to, and where they begin."""
        return self.get_seq_length() + query_length, 0


BATCH, PAST, NEW = 2, 2, 3
"""Sizes of what is traced; they are dynamic in the graph."""
ALSO = "every layer plain causal attention: llama, qwen, mistral without a window, gpt2, phi, …"


@dataclass(frozen=True)
class Widths:
    """Keys and values of one layer: their heads, and the width of each."""

    key: tuple[int, int]
    value: tuple[int, int]


class Traced(nn.Module):
    """A decoder whose past is inputs and outputs, with a mask made here.

    Args:
        model: the decoder.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the logits, and of each layer all keys and all values."""
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
    """Return what is added to the scores: `[batch, 1, new, past + new]`, 0 where a token is seen.

    Args:
        attention_mask: `[batch, past + new]`, 1 for a token and 0 for a filled place.
        past: tokens before.
        new: tokens now.
    """
    queries, keys = torch.arange(past, past + new), torch.arange(0, past + new)
    seen = attention_mask[:, None, None, :].bool() & (keys[None] <= queries[:, None])[None, None]
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)


def to_ir(model: PreTrainedModel) -> Any:
    """Return a decoder as an `openvino.Model` with state.

    Args:
        model: a causal language model in float32; it is left as it was.

    Raises:
        InputError: the engine would not compute what this decoder does; the reason is in it.
    """
    send_nothing()
    import openvino

    layers = int(model.config.get_text_config().num_hidden_layers)
    with quiet("transformers", "nncf", "openvino"), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        widths = _asked(model, layers)
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
    made = made_stateful(ir, layers)
    if (paged := paged_attentions(made)) != layers:
        raise _refused(model, f"paged attention takes {paged} of its {layers} layers")
    return made


def _asked(model: PreTrainedModel, layers: int) -> list[Widths]:
    """Ask the decoder once, and return what its layers keep, if the engine can serve them."""
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
        # a layer that wants another kind of cache, a mask of its own, or no positions
        raise _refused(model, f"it takes no plain cache, mask or positions: {_first(error)}") from (
            error
        )
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
        f"the {kind} cannot be served with continuous batching: {reason}", seen=kind, valid=ALSO
    )
