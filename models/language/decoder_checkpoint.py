"""A decoder's checkpoints: sharded ones to resume training from, and the folder of trained weights.

A sharded checkpoint is written by torch.distributed.checkpoint. It has `state/` (trained weights
and the optimizer's state, one file per worker), `rng-RANK.pt` and `place.json`. Every worker writes
its own files into its own folder, and Ray Train merges the folders. Any number of workers can read
the checkpoint again, and each worker reads only the parts that it needs. The trained decoder is one
folder in the format of transformers.
"""

import json
import shutil
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

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import ids_of
from millrace.models.common.quiet import quiet_transformers
from millrace.models.language.lora import merge_adapter
from millrace.models.language.recipe import DecoderSpec
from millrace.models.language.sequence_order import Position

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_STATE, _POSITION = "state", "place.json"
# Flat names make a checkpoint independent of the optimizer's parameter groups, which differ between
# strategies. Frozen weights are not saved: they come from the pretrained model.
_SHARDED = StateDictOptions(
    flatten_optimizer_state_dict=True, ignore_frozen_params=True, strict=False
)
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)


def save_resume(
    folder: Path, decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...], position: Position
) -> None:
    """Write this worker's part of a checkpoint; all workers call this after the same step."""
    rank = _rank()
    save(
        _contiguous(_states(decoder, optimizers)),
        storage_writer=FileSystemWriter(folder / _STATE),
        no_dist=not dist.is_initialized(),
    )
    torch.save(_rng(decoder.device), folder / f"rng-{rank}.pt")
    if rank == 0:
        known = {**asdict(position), "world_size": _world_size()}
        (folder / _POSITION).write_text(json.dumps(known))


def load_resume(
    folder: Path, decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...]
) -> Position:
    """Load weights, optimizer and random state, and return the position of the run.

    If the number of workers has changed, the random state is not restored. Only dropout uses it.
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
    known = json.loads((folder / _POSITION).read_text())
    if known.pop("world_size") == _world_size():
        _set_rng(torch.load(folder / f"rng-{_rank()}.pt", weights_only=True), decoder.device)
    return Position(**known)


def whole_weights(decoder: "PreTrainedModel") -> dict[str, Tensor]:
    """Return all trained weights by name, gathered on the CPU of rank 0; all workers call this."""
    found = get_model_state_dict(decoder, options=_WHOLE)
    # With ddp all ranks get the tensors; sharded tensors are gathered on rank 0 only.
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _states(decoder: "PreTrainedModel", optimizers: tuple[Optimizer, ...]) -> dict[str, Any]:
    return {
        "model": get_model_state_dict(decoder, options=_SHARDED),
        "optimizer": get_optimizer_state_dict(decoder, optimizers, options=_SHARDED),
    }


def _contiguous(states: dict[str, Any]) -> dict[str, Any]:
    """Return the states with contiguous shards, because strided shards are saved incorrectly."""
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


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def save_decoder(
    folder: Path, decoder: "PreTrainedModel", spec: DecoderSpec, tokenizer: Path | None
) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` and the tokenizer's files.

    With LoRA the adapter is saved in `adapter/` and then merged into the weights of `decoder`.

    Args:
        folder: where to write; created if it does not exist.
        decoder: the decoder on the CPU, not sharded.
        spec: the spec that the decoder was built from.
        tokenizer: folder of the tokenizer's files; None to write no tokenizer.

    Raises:
        WorkError: the tokenizer's folder has no tokenizer.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = decoder if spec.lora is None else merge_adapter(decoder, folder)
    _set_special_tokens(whole, spec, tokenizer)
    with quiet_transformers():
        # One file, because export and serving do not read an index of several files.
        whole.save_pretrained(folder, max_shard_size="1TB")
    if tokenizer is not None:
        _copy_tokenizer(tokenizer, folder)


def _set_special_tokens(
    decoder: "PreTrainedModel", spec: DecoderSpec, tokenizer: Path | None
) -> None:
    """Set the special tokens, and let generation end at the end of a document or of a turn.

    A pretrained decoder keeps its own end tokens that are special tokens of the tokenizer too.
    """
    before = _ends_before(decoder, tokenizer)
    for holder in (decoder.config, decoder.generation_config):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(spec, name)
            if holder is not None and value is not None:
                setattr(holder, name, value)
    if decoder.generation_config is not None and spec.eos_token_id is not None:
        ends = [*dict.fromkeys((spec.eos_token_id, *spec.turn_end_ids, *before))]
        decoder.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]


def _ends_before(decoder: "PreTrainedModel", tokenizer: Path | None) -> list[int]:
    """Return the ids of the decoder's end tokens that are also special tokens of the tokenizer."""
    config = decoder.generation_config
    if tokenizer is None or config is None or not (tokenizer / TOKENIZER_FILES[0]).is_file():
        return []
    added = json.loads((tokenizer / TOKENIZER_FILES[0]).read_text()).get("added_tokens", ())
    known = {each["id"] for each in added if each["special"]}
    return sorted(ids_of(config.eos_token_id) & known)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    if not (source / TOKENIZER_FILES[0]).is_file():
        raise WorkError(
            "the tokenizer's files were deleted during training",
            seen=source,
            valid="a folder with tokenizer.json",
            hint="run the pipeline again; do not delete the files of a run while it trains",
        )
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
