"""Operations of training, their share of a device's peak (MFU), and the days they take."""

from millrace.models.planner.decoder import Decoder
from millrace.models.planner.parallelism import Recompute

SECONDS_OF_A_DAY = 86_400


def model_flops(decoder: Decoder, sequences: float, context: int) -> float:
    """Return the operations that a training step needs, without recomputation.

    Three times the forward pass. For a decoder like GPT-3 this is
    72BLsh²(1 + s/6h + V/12hL) (Narayanan et al. 2021, 2104.04473, section 3.1, without its
    recomputation; Korthikanti et al. 2022, 2205.05198, equation 7).

    Args:
        decoder: the decoder.
        sequences: sequences of the step, over all devices.
        context: tokens of a sequence.
    """
    return 3 * sequences * context * decoder.forward_flops(context)


def hardware_flops(decoder: Decoder, sequences: float, context: int, recompute: Recompute) -> float:
    """Return the operations that a training step does, recomputed ones included.

    With full recomputation the layers' forward pass is done twice, for a decoder like GPT-3
    96BLsh²(1 + s/6h + V/16hL) (2104.04473, equation 3); with selective recomputation only the
    products of attention are.

    Args:
        decoder: the decoder.
        sequences: sequences of the step, over all devices.
        context: tokens of a sequence.
        recompute: what is computed twice.
    """
    attention = 4.0 * decoder.layers * decoder.score_width * context
    head = 2.0 * decoder.vocabulary * decoder.hidden
    again = {
        "none": 0.0,
        "selective": attention,
        "full": decoder.forward_flops(context) - head,
    }[recompute]
    return model_flops(decoder, sequences, context) + sequences * context * again


def flops_per_token(trained: float, frozen: float, attention_width: float, context: float) -> float:
    """Return the operations of a training step per token, where some weights may be frozen.

    6 per trained parameter (forward 2, backward 4: Kaplan et al. 2020, 2001.08361), 4 per frozen
    parameter, whose own gradient is not computed, and 12·L·H·Q·T for attention, without the causal
    mask (PaLM, 2204.02311, appendix B).

    Args:
        trained: trained parameters in matrix products; of experts, those that a token uses.
        frozen: frozen parameters, counted in the same way.
        attention_width: layers x heads x width of a head.
        context: tokens of a sequence.
    """
    return 6.0 * trained + 4.0 * frozen + 12.0 * attention_width * context


def flops_utilization(flops: float, seconds: float, peak: float, devices: int) -> float:
    """Return the share of the devices' peak that the operations took, 0 to 1.

    With `model_flops` it is MFU (PaLM, appendix B), with `hardware_flops` it is HFU.

    Args:
        flops: operations.
        seconds: time in which they were done.
        peak: operations per second of a device.
        devices: number of devices.
    """
    return flops / (seconds * peak * devices)


def training_days(
    parameters: float, tokens: float, devices: int, flops_per_device: float, *, full: bool = True
) -> float:
    """Return the days of a training.

    8TP/nX with full recomputation (Narayanan et al. 2021, 2104.04473, equation 4), 6TP/nX without.

    Args:
        parameters: parameters that process a token.
        tokens: tokens of the training.
        devices: number of devices.
        flops_per_device: operations per second that a device reaches.
        full: whether the forward pass is done twice.
    """
    operations = (8 if full else 6) * tokens * parameters
    return operations / (devices * flops_per_device) / SECONDS_OF_A_DAY
