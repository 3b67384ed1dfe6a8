"""Whether a decoder keeps the pieces of a packed sequence apart: it is tried, not believed."""

from typing import TYPE_CHECKING

import torch

from millrace.models.common.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FIRST, _SECOND = 5, 7


def require_pieces_apart(decoder: "PreTrainedModel") -> None:
    """Refuse a decoder whose second piece sees the first.

    Recurrent ones carry their state over (mamba), some build a mask of their own (opt, falcon,
    bloom). The answers for a piece, alone and behind another, are compared.

    Args:
        decoder: on the CPU, float32; its mode is put back.

    Raises:
        InputError: it does not keep them apart, or cannot be tried.
    """
    was_training = decoder.training
    decoder.train(False)
    try:
        apart = _apart(decoder)
    except Exception as error:  # whatever an unusual forward raises
        raise InputError(
            f"a decoder {decoder.config.model_type!r} fails on a short sequence",
            seen=f"{type(error).__name__}: {error}".splitlines()[0],
            valid="a decoder that takes input_ids and position_ids, and whose params fit together",
            hint="mend model.params: num_key_value_heads divides num_attention_heads",
        ) from error
    finally:
        decoder.train(was_training)
    if not apart:
        raise InputError(
            f"a decoder {decoder.config.model_type!r} cannot be trained on packed sequences",
            seen="the second piece of a sequence is answered by the first as well",
            valid="a decoder with attention by position_ids: llama, qwen3, mistral, gpt2, …",
            hint="choose another model.params.architecture or model.pretrained",
        )


@torch.no_grad()
def _apart(decoder: "PreTrainedModel") -> bool:
    vocabulary = int(decoder.config.get_text_config(decoder=True).vocab_size)
    tokens = torch.arange(_FIRST + _SECOND)[None] % vocabulary
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None]
    packed = decoder(input_ids=tokens, position_ids=positions, use_cache=False).logits
    alone = decoder(
        input_ids=tokens[:, _FIRST:], position_ids=positions[:, _FIRST:], use_cache=False
    ).logits
    # A hundredth: matrix kernels round differently by shape; a piece that sees another is far off.
    spread = alone.std().clamp(min=1e-6)
    return bool(((packed[:, _FIRST:] - alone).abs().max() / spread) < 1e-2)
