"""The checkpoint of a decoder, sharded by torch.distributed.checkpoint for every strategy.

A folder holds `state/` (weights that are trained and the optimizer's state, a file for each
worker), `rng-RANK.pt`, and `place.json`. Every worker writes its own files into its own folder;
Ray Train puts them together. Any number of workers reads them again, each what it needs.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from millrace.models.language.sequence_order import Place

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_STATE, _PLACE = "state", "place.json"
# Flat names make it independent of how the optimizer groups the parameters, which differs between
# strategies. What is frozen comes from where the decoder was read.
_SHARDED = StateDictOptions(
    flatten_optimizer_state_dict=True, ignore_frozen_params=True, strict=False
)
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)


def save_resume(
    folder: Path, decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...], place: Place
) -> None:
    """Write this worker's part of a checkpoint; all workers call it at the same place."""
    rank = _rank()
    save(
        _contiguous(_states(decoder, optimizers)),
        storage_writer=FileSystemWriter(folder / _STATE),
        no_dist=not dist.is_initialized(),
    )
    torch.save(_rng(decoder.device), folder / f"rng-{rank}.pt")
    if rank == 0:
        known = {**asdict(place), "world_size": _world_size()}
        (folder / _PLACE).write_text(json.dumps(known))


def load_resume(
    folder: Path, decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...]
) -> Place:
    """Read weights, optimizer and random state, and return where the run stood.

    With another number of workers the random state, which dropout alone draws from, begins anew.
    """
    states = _states(decoder, optimizers)
    loaded = _contiguous(states)
    load(
        loaded,
        storage_reader=FileSystemReader(folder / _STATE),
        no_dist=not dist.is_initialized(),
    )
    loaded = tree_map(_placed_as, loaded, states)
    set_model_state_dict(decoder, loaded["model"], options=_SHARDED)
    set_optimizer_state_dict(decoder, optimizers, loaded["optimizer"], options=_SHARDED)
    known = json.loads((folder / _PLACE).read_text())
    if known.pop("world_size") == _world_size():
        _set_rng(torch.load(folder / f"rng-{_rank()}.pt", weights_only=True), decoder.device)
    return Place(**known)


def whole_weights(decoder: "PreTrainedModel") -> dict[str, Tensor]:
    """Return all weights that are trained, on the CPU, to rank 0; all workers call it."""
    found = get_model_state_dict(decoder, options=_WHOLE)
    # A whole tensor of ddp comes to all ranks, a sharded one to the first.
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _states(decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...]) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(decoder, options=_SHARDED),
        "optimizer": get_optimizer_state_dict(decoder, optimizers, options=_SHARDED),
    }


def _contiguous(states: dict[str, Any]) -> dict[str, Any]:
    """Return the states with every shard in one stretch: more than that is not written rightly."""
    moved: dict[str, Any] = tree_map(_in_one_stretch, states)
    return moved


def _in_one_stretch(value: Any) -> Any:
    if not isinstance(value, DTensor):
        return value
    wanted = [each if type(each).__name__ != "_StridedShard" else Shard(each.dim)  # type: ignore
              for each in value.placements]  # fmt: skip
    return value if tuple(wanted) == value.placements else value.redistribute(placements=wanted)


def _placed_as(value: Any, reference: Any) -> Any:
    if not isinstance(value, DTensor) or value.placements == reference.placements:
        return value
    return value.redistribute(placements=reference.placements)


def _rng(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state if device.type != "cuda" else {**state, "cuda": torch.cuda.get_rng_state(device)}


def _set_rng(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
