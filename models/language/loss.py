"""The loss of a decoder on packed sequences."""

from torch import Tensor, nn
from torch.nn import functional

from millrace.models.language.micro_batches import IGNORED, MicroBatch


def summed_loss(decoder: nn.Module, batch: MicroBatch) -> Tensor:
    """Return the sum of the losses of a batch's answers, float32 scalar.

    Args:
        decoder: of transformers, also wrapped.
        batch: on the decoder's device.
    """
    logits: Tensor = decoder(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False
    ).logits
    return functional.cross_entropy(
        logits.float().flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
