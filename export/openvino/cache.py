"""A cache of keys and values that are plain tensors, in and out of a traced decoder."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, cat
from transformers.cache_utils import Cache


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
