"""How a decoder is spread over the workers: copied, sharded, or every layer split.

    ddp   every worker holds the whole decoder and its own sequences (DistributedDataParallel)
    fsdp  weights, gradients and optimizer are sharded layer by layer (FSDP2, Zhao et al. 2023,
          "PyTorch FSDP"; Rajbhandari et al. 2020, "ZeRO", stage 3), each with its own sequences
    tp    every layer's matrices are split over the workers, which share their sequences (Shoeybi et
          al. 2019, "Megatron-LM"), by the plan that transformers has for the architecture

All begin with the same whole decoder, in every process, on the CPU.
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
from millrace.models.language.recipe import Parallel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Strategy:
    """One worker alone, and what the others differ from.

    Attributes:
        device: of this worker.
        rank: among those that have sequences of their own; so world_size.
        module: what forward is called on; None before `spread`.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.rank, self.world_size = 0, 1
        self.module: nn.Module | None = None

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Put the decoder where this worker computes, and return it."""
        self.module = decoder.to(cast(Any, self.device))
        return decoder

    @property
    def gradient_scale(self) -> float:
        """By what a loss is multiplied, so that gradients are sums over the workers."""
        return 1.0

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Hold gradients back from the other workers until the last micro-step of a step."""
        yield

    def autocast(self) -> Any:
        """Return the context that a forward pass is made in."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def summed(self, values: Tensor) -> Tensor:
        """Return sums over the workers that have sequences of their own."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


class _WithOwnSequences(Strategy):
    def __init__(self, device: torch.device, dtype: torch.dtype | None) -> None:
        super().__init__(device, dtype)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @property
    def gradient_scale(self) -> float:
        """Both average gradients over the workers."""
        return float(self.world_size)


class CopiedStrategy(_WithOwnSequences):
    """`training.parallel: ddp`: every worker has all weights."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Copy the decoder of rank 0 to all."""
        super().spread(decoder)
        ids = [self.device.index] if self.device.type == "cuda" else None
        self.module = DistributedDataParallel(decoder, ids, gradient_as_bucket_view=True)
        return decoder

    @contextmanager
    def micro_step(self, is_last: bool) -> Iterator[None]:
        """Hold gradients back until the last micro-step."""
        wrapped = cast(DistributedDataParallel, self.module)
        with nullcontext() if is_last else wrapped.no_sync():
            yield


class ShardedStrategy(_WithOwnSequences):
    """`fsdp`."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Shard every decoder layer, and what is left with the root."""
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        # Each layer goes to the device as it is sharded: a GPU never holds the whole decoder.
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
        """Hold gradients back until the last micro-step."""
        cast(FSDPModule, self.module).set_requires_gradient_sync(is_last)
        yield


class SplitStrategy(Strategy):
    """`tp`."""

    def spread(self, decoder: "PreTrainedModel") -> "PreTrainedModel":
        """Split the decoder by transformers' plan for its architecture.

        Raises:
            InputError: there is none, or the heads do not divide by the workers.
        """
        require_splittable(decoder, workers())
        from transformers.distributed.configuration_utils import DistributedConfig

        kind = type(decoder)
        config, _, mesh = kind.prepare_distribute_model(DistributedConfig(tp_size=workers()))
        decoder.to(cast(Any, self.device))
        kind.maybe_distribute_model(decoder, config, mesh)
        # The plan has replaced the parameters of both ends of a tie.
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
    """Return the strategy of this process, which is in a process group, or alone.

    Args:
        parallel: `ddp`, `fsdp` or `tp`.
        device: of this worker.
        dtype: what matrices are multiplied in; None for float32.
    """
    # On one GPU fsdp is what it is on many, its mixed precision included.
    alone = workers() == 1 and not (parallel == "fsdp" and dist.is_initialized())
    return (Strategy if alone else _STRATEGIES[parallel])(device, dtype)


def workers() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def layers_of(decoder: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, in order.

    Raises:
        InputError: its modules do not tell which they are.
    """
    wanted = int(decoder.config.get_text_config(decoder=True).num_hidden_layers)  # type: ignore
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise InputError(
        "this decoder has no list of layers to shard",
        seen=type(decoder).__name__,
        valid=f"a torch.nn.ModuleList of {wanted} layers",
        hint="set training.parallel: ddp",
    )


def require_splittable(decoder: "PreTrainedModel", several: int) -> None:
    """Refuse what tensor parallelism cannot split evenly.

    Raises:
        InputError: adapters, no plan, or heads that do not divide.
    """
    if hasattr(decoder, "peft_config"):
        raise InputError(
            "adapters are not trained with training.parallel: tp",
            seen="model.lora",
            valid="training.parallel: ddp or fsdp",
        )
    text = decoder.config.get_text_config(decoder=True)
    # The class may have one for its head alone, which splits nothing that matters.
    if not text.base_model_tp_plan:
        raise InputError(
            f"transformers has no plan to split a {decoder.config.model_type!r} by",
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
