"""The attention of a decoder on its way to OpenVINO, and what it says of the decoder.

Transformers calls it in the place of its own (`AttentionInterface`), so that every layer becomes
one ScaledDotProductAttention with as many heads of keys and values as of queries: the pattern that
the engine turns into paged attention.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, equal, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

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
    """Attention in OpenVINO's form; it remembers what it was asked for.

    Attributes:
        mask: that the model is given, to tell one of the model's own by; None where none is told.
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
    """Let a model attend by `attention` while the block runs.

    A model that has no use for `AttentionInterface` keeps its own: nothing is seen of it then.
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
