"""How a decoder is spread over the workers: copied, sharded, or every layer split.

    ddp   every worker has the whole decoder and its own sequences (DistributedDataParallel)
    fsdp  weights, gradients and optimizer state are sharded layer by layer, and every worker has
          its own sequences (FSDP2, Zhao et al. 2023, "PyTorch FSDP"; Rajbhandari et al. 2020,
          "ZeRO", stage 3)
    tp    every layer's matrices are split over the workers, which share their sequences (Shoeybi et
          al. 2019, "Megatron-LM"), by transformers' tensor-parallel plan for the architecture

All strategies start from the same whole decoder, on the CPU of every process.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from millrace.models.common.errors import InputError
from millrace.models.planner.worker_memory import Parallel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Strategy:
    """The strategy for a single worker, and the base class of the other strategies.

    Attributes:
        device: this worker's device.
        dtype: type of matrix products; None for float32.
        rank: this worker's rank among the workers that train on different sequences.
        world_size: number of workers that train on different sequences.
        module: the module to call forward on; None before `spread`.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.rank, self.world_size = 0, 1
        self.module: nn.Module | None = None

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Move the decoder to this worker's device, shard or split it, and return it."""
        self.module = decoder.to(cast(Any, self.device))
        return decoder

    @property
    def gradient_scale(self) -> float:
        """Factor to multiply the loss by, so that gradients are summed over the workers."""
        return 1.0

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Delay the all-reduce of gradients until the last micro-step of a step."""
        yield

    def autocast(self) -> Any:
        """Return the autocast context of a forward pass."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def summed(self, values: Tensor) -> Tensor:
        """Return `values` summed over the workers that train on different sequences."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


class _WithOwnSequences(Strategy):
    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        super().__init__(device, dtype)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @property
    def gradient_scale(self) -> float:
        """The number of workers, because DDP and FSDP average gradients over the workers."""
        return float(self.world_size)


class CopiedStrategy(_WithOwnSequences):
    """`training.parallel: ddp`: every worker has all weights."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Copy the decoder of rank 0 to all workers."""
        super().spread(decoder)
        ids = [self.device.index] if self.device.type == "cuda" else None
        self.module = DistributedDataParallel(decoder, ids, gradient_as_bucket_view=True)
        return decoder

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Delay the all-reduce of gradients until the last micro-step."""
        wrapped = cast(DistributedDataParallel, self.module)
        with nullcontext() if is_last else wrapped.no_sync():
            yield


class ShardedStrategy(_WithOwnSequences):
    """`training.parallel: fsdp`: every worker has a shard of each weight."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Shard each decoder layer by itself, and all other weights together in the root module."""
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        # Each layer moves to the device when it is sharded, so a GPU never has the whole decoder.
        policy = MixedPrecisionPolicy(param_dtype=self.dtype, reduce_dtype=torch.float32)
        options: dict[str, Any] = {"mesh": mesh}
        if self.dtype is not None:
            options["mp_policy"] = policy
        for layer in layers_of(decoder):
            fully_shard(layer, **options)
        fully_shard(decoder, **options)
        self.module = decoder
        return decoder

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Delay the reduction of gradients until the last micro-step."""
        cast(FSDPModule, self.module).set_requires_gradient_sync(is_last)
        yield


class SplitStrategy(Strategy):
    """`training.parallel: tp`: every worker has a part of each layer's matrices."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Split the decoder by transformers' tensor-parallel plan for its architecture.

        Raises:
            InputError: the decoder cannot be split, as in `require_splittable`.
        """
        require_splittable(decoder, workers())
        from transformers.distributed.configuration_utils import DistributedConfig

        kind = type(decoder)
        config, _, mesh = kind.prepare_distribute_model(DistributedConfig(tp_size=workers()))
        decoder.to(cast(Any, self.device))
        kind.maybe_distribute_model(decoder, config, mesh)
        # The split replaced the parameters of tied weights, so they are tied again.
        decoder.tie_weights(recompute_mapping=False)
        self.module = decoder
        return decoder


_STRATEGIES: dict[Parallel, type[Strategy]] = {
    "ddp": CopiedStrategy,
    "fsdp": ShardedStrategy,
    "tp": SplitStrategy,
}


def strategy_of(
    parallel: Parallel, device: torch.device, dtype: torch.dtype | None = None
) -> Strategy:
    """Return the strategy of this process, which may be in a process group.

    Args:
        parallel: `ddp`, `fsdp` or `tp`.
        device: this worker's device.
        dtype: type of matrix products; None for float32.
    """
    # With fsdp a single GPU uses FSDP too, so that mixed precision is the same as on several GPUs.
    alone = workers() == 1 and not (parallel == "fsdp" and dist.is_initialized())
    return (Strategy if alone else _STRATEGIES[parallel])(device, dtype)


def workers() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def layers_of(decoder: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, in order.

    Raises:
        InputError: the decoder has no ModuleList with as many modules as its config has layers.
    """
    wanted = int(decoder.config.get_text_config(decoder=True).num_hidden_layers)  # type: ignore
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise InputError(
        "the decoder has no list of layers, which training.parallel: fsdp needs to shard it",
        seen=type(decoder).__name__,
        valid=f"a torch.nn.ModuleList of {wanted} layers",
        hint="set training.parallel: ddp",
    )


def require_splittable(decoder: "PreTrainedModel", several: int) -> None:
    """Refuse a decoder that tensor parallelism cannot split evenly.

    Args:
        decoder: the whole decoder.
        several: number of workers.

    Raises:
        InputError: the decoder has LoRA adapters, transformers has no tensor-parallel plan for the
            decoder, or its number of key-value heads is not divisible by the number of workers.
    """
    if hasattr(decoder, "peft_config"):
        raise InputError(
            "LoRA adapters cannot be trained with training.parallel: tp",
            seen="model.lora",
            valid="training.parallel: ddp or fsdp",
        )
    text = decoder.config.get_text_config(decoder=True)
    # The model class may have a plan for its head only, which would not split the layers.
    if not text.base_model_tp_plan:
        raise InputError(
            f"transformers has no tensor-parallel plan for a decoder {decoder.config.model_type!r}",
            seen="training.parallel: tp",
            valid="training.parallel: ddp or fsdp, or an architecture with a plan, such as llama",
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % several:
        raise InputError(
            "the attention heads cannot be divided among the workers",
            seen=f"{heads} key-value heads, {several} workers",
            valid="a number of workers that divides num_key_value_heads",
            hint="change training.num_workers, or set training.parallel: fsdp",
        )
