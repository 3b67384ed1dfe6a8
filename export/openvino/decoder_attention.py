"""The attention of a decoder on its way to OpenVINO, and which decoders cannot be served.

Transformers calls it in the place of its own (`AttentionInterface`), so that every layer becomes
one ScaledDotProductAttention with as many heads of keys and values as of queries: the pattern that
the engine turns into paged attention.

A decoder whose attention paged attention does not know is refused at export.
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
"""The way to compute a mixture of experts that has no shape that depends on values."""


@dataclass(frozen=True)
class Attended:
    """What one layer asked of attention.

    Attributes:
        sliding_window: tokens that it looks back; None for all.
        softcap: bound of its scores; None for none.
        sinks: whether its scores have a column that no token is behind.
        biased: whether something is added to its scores, beside the mask that the model was given.
    """

    sliding_window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    biased: bool = False


@dataclass
class Attention:
    """Attention in OpenVINO's variant; it remembers what it was asked for.

    Attributes:
        mask: the mask that the model gets, by which its own masks are recognized; None for none.
        seen: what each call asked for.
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
        """Attend, as transformers wants it.

        Args:
            module: the layer.
            query: `[batch, heads, queries, width]`, as the others float32.
            key: `[batch, key heads, tokens, width]`.
            value: `[batch, key heads, tokens, value width]`.
            attention_mask: `[batch, 1, queries, tokens]`, added to the scores.
            dropout: none is made.
            scaling: of the scores; None for 1/√width.
            asked: whatever else the layer asks for.

        Returns:
            `[batch, queries, heads, value width]`, and no weights.
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
    """Return each head `groups` times: by an expansion, which the engine undoes again."""
    if groups == 1:
        return heads
    batch, count, tokens, width = heads.shape
    wide = heads.unsqueeze(2).expand(batch, count, groups, tokens, width)
    return wide.reshape(batch, count * groups, tokens, width)


@contextmanager
def attending(model: PreTrainedModel, attention: Attention) -> Iterator[None]:
    """Replace a model's attention while the block runs.

    A model that does not use `AttentionInterface` keeps its own, and none of its calls are seen.
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
"""Kinds of layers that keep keys and values of each token; which of them fit is asked later."""


def unlike(kinds: Collection[str], takes: Collection[str], alibi: bool) -> str | None:
    """Return why a decoder is none of keys, values and positions, or None if it may be one.

    Args:
        kinds: of its layers, as its config names them; empty where it does not.
        takes: names of what its forward takes.
        alibi: whether its config says that its scores are shifted by distance.
    """
    other = sorted({kind for kind in kinds if kind not in ATTENTION})
    if other or "past_key_values" not in takes:
        has = f"layers of {', '.join(other)}" if other else "no keys and values"
        return f"it has {has}: linear attention, state spaces and the like are not served"
    if alibi or "position_ids" not in takes:
        return "its attention scores are shifted by distance (ALiBi)"
    return None


def refusal(layers: int, context: int | None, seen: Sequence[Attended]) -> str | None:
    """Return why the engine would not compute what the decoder does, or None.

    Its paged attention is plain and causal: nothing bounds or shifts a score, and every token sees
    all before it.

    Args:
        layers: layers of the decoder.
        context: tokens of the longest text; None if the decoder does not say.
        seen: what each layer asked of attention; empty where the decoder has a way of its own.
    """
    if seen and len(seen) != layers:
        return f"{len(seen)} attentions for {layers} layers: some layers are of another kind"
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
    """Return why layers are not all attention over keys and values, or None if they are.

    Args:
        layers: layers of the decoder.
        cached: layers that keep keys and values.
        attentions: attention operations of its graph; None if they were not counted.
    """
    if cached != layers:
        return (
            f"{cached} of its {layers} layers keep keys and values: "
            "linear attention and state spaces are not served"
        )
    if attentions is not None and attentions != layers:
        return f"its graph has {attentions} attention operations for {layers} layers"
    return None


def number_of(folder: Path, name: str) -> int:
    """Return a number of the config in a folder: `vocab_size`, `max_position_embeddings`, ….

    Raises:
        InputError: it cannot be read, or has none of that name.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of a folder
        raise InputError(
            f"the config in {folder.name} cannot be read",
            seen=next(iter(str(error).splitlines()), type(error).__name__),
            valid="config.json of a decoder that this transformers knows",
            hint="run the pipeline of that model again",
        ) from error
    number = getattr(config.get_text_config(), name, None)
    if not isinstance(number, int):
        raise InputError(
            f"the config of the {config.model_type} does not say {name}",
            seen=number,
            valid="a decoder with a limited context",
        )
    return number
