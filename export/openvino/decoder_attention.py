"""The attention function for converting a decoder to OpenVINO, and checks for unsupported decoders.

transformers calls this function instead of its own (`AttentionInterface`). The attention of every
layer then becomes one ScaledDotProductAttention operation, with as many key and value heads as
query heads. The engine (OpenVINO GenAI) turns this operation into paged attention.

A decoder whose attention is not supported by paged attention is refused at export.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, equal, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from millrace.models.common.errors import InputError

NAME = "millrace_openvino"
EXPERTS = "batched_mm"
"""transformers' implementation of mixture of experts without data-dependent shapes."""


@dataclass(frozen=True)
class Attended:
    """The features of attention that one layer uses.

    Attributes:
        sliding_window: number of tokens that the layer attends to; None for all.
        softcap: bound of the attention scores; None for no bound.
        sinks: whether the scores have an extra column without a token (attention sinks).
        biased: whether a bias is added to the scores, besides the mask that the model was given.
    """

    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    biased: bool = False


@dataclass
class Attention:
    """Attention function that OpenVINO can convert; it records the features that each call uses.

    Attributes:
        mask: the mask that the model was given. A call with another mask is recorded as biased,
            because the layer made that mask itself. None: masks are not compared.
        seen: the features that each call used.
    """

    mask: Tensor | None = None
    seen: list[Attended] = field(default_factory=list)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **asked: Any,
    ) -> tuple[Tensor, None]:
        """Compute attention, with the interface of transformers' attention functions.

        Args:
            module: the layer.
            query: `[batch, heads, queries, width]`, float32 as all tensors here.
            key: `[batch, key heads, tokens, width]`.
            value: `[batch, key heads, tokens, value width]`.
            attention_mask: `[batch, 1, queries, tokens]`, added to the scores.
            dropout: ignored.
            scaling: factor of the scores; None for 1/√width.
            asked: other keyword arguments of the layer's call, such as `softcap`.

        Returns:
            Output `[batch, queries, heads, value width]`, and None for the attention weights.
        """
        self.seen.append(
            Attended(
                asked.get("sliding_window"),
                asked.get("softcap"),
                asked.get("s_aux") is not None,
                asked.get("position_bias") is not None or self._is_own(attention_mask),
            )
        )
        groups = query.shape[1] // key.shape[1]
        answer = scaled_dot_product_attention(
            *(query, _repeated(key, groups), _repeated(value, groups)),
            attn_mask=attention_mask,
            scale=scaling,
        )
        return answer.transpose(1, 2).contiguous(), None

    def _is_own(self, mask: Tensor | None) -> bool:
        given = self.mask
        if given is None:
            return False
        return mask is None or mask.shape != given.shape or not equal(mask, given)


def _repeated(heads: Tensor, groups: int) -> Tensor:
    """Return each head repeated `groups` times, by an expansion that the engine removes again."""
    if groups == 1:
        return heads
    batch, count, tokens, width = heads.shape
    wide = heads.unsqueeze(2).expand(batch, count, groups, tokens, width)
    return wide.reshape(batch, count * groups, tokens, width)


@contextmanager
def attending(model: PreTrainedModel, attention: Attention) -> Iterator[None]:
    """Replace a model's attention inside a `with` block.

    A model that does not use `AttentionInterface` keeps its own attention, and its calls are not
    recorded.
    """
    before = model.config._attn_implementation
    experts = getattr(model.config, "_experts_implementation", None)
    training = model.training
    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)
    if experts is not None:
        model.set_experts_implementation(EXPERTS)
    model.train(False)
    try:
        yield
    finally:
        model.train(training)
        model.set_attn_implementation(before)
        if experts is not None:
            model.set_experts_implementation(experts)


ATTENTION = ("full_attention", "sliding_attention")
"""Kinds of layers that keep keys and values of each token; `refusal` checks their attention."""


def unlike(kinds: Collection[str], takes: Collection[str], alibi: bool) -> str | None:
    """Return why a decoder does not use keys, values and position ids, or None if it may use them.

    Args:
        kinds: kinds of its layers from its config; empty if the config does not name them.
        takes: parameter names of its forward method.
        alibi: whether its config says that it uses ALiBi.
    """
    other = sorted({kind for kind in kinds if kind not in ATTENTION})
    if other or "past_key_values" not in takes:
        has = f"layers of {', '.join(other)}" if other else "no layers that keep keys and values"
        return f"it has {has}: linear attention, state spaces and the like are not served"
    if alibi or "position_ids" not in takes:
        return "its attention scores are shifted by distance (ALiBi)"
    return None


def refusal(layers: int, context: int | None, seen: Sequence[Attended]) -> str | None:
    """Return why the engine's attention would differ from the decoder's, or None if it would not.

    The engine's paged attention is plain and causal: no score is bounded or biased, and every token
    attends to all tokens before it.

    Args:
        layers: number of the decoder's layers.
        context: the decoder's context length in tokens; None if its config has none.
        seen: features that each layer's attention used; empty if the decoder does not use
            `AttentionInterface`.
    """
    if seen and len(seen) != layers:
        return f"it makes {len(seen)} attention calls for {layers} layers: some are of another kind"
    windows = [each.sliding_window for each in seen if each.sliding_window is not None]
    if windows and (context is None or min(windows) < context):
        has = "any length" if context is None else f"{context:,} tokens"
        return f"its attention looks back {min(windows):,} tokens only, and its context is {has}"
    if any(each.softcap is not None for each in seen):
        return "its attention scores are soft-capped"
    if any(each.sinks for each in seen):
        return "its attention has sinks"
    if any(each.biased for each in seen):
        return "its attention adds a bias of its own to the scores"
    return None


def other_kind(layers: int, cached: int, attentions: int | None = None) -> str | None:
    """Return why some layers are not attention over keys and values, or None if all are.

    Args:
        layers: number of the decoder's layers.
        cached: number of layers that keep keys and values.
        attentions: number of attention operations in the OpenVINO graph; None if not counted.
    """
    if cached != layers:
        return (
            f"only {cached} of its {layers} layers keep keys and values: "
            "linear attention and state spaces are not served"
        )
    if attentions is not None and attentions != layers:
        return f"its OpenVINO graph has {attentions} attention operations for {layers} layers"
    return None


def number_of(folder: Path, name: str) -> int:
    """Return an integer from a model's config: `vocab_size`, `max_position_embeddings`, ….

    Args:
        folder: folder with config.json.
        name: key of the config.

    Raises:
        InputError: the config cannot be read, or has no integer with that key.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers may raise anything on a damaged folder
        raise InputError(
            f"the model's config {folder / 'config.json'} cannot be read",
            seen=next(iter(str(error).splitlines()), type(error).__name__),
            valid="config.json of a decoder that the installed transformers supports",
            hint="run the model's pipeline again",
        ) from error
    number = getattr(config.get_text_config(), name, None)
    if not isinstance(number, int):
        raise InputError(
            f"{folder / 'config.json'}, of a {config.model_type} model, has no integer {name}",
            seen=number,
            valid="a decoder with vocab_size and max_position_embeddings in its config",
        )
    return number
