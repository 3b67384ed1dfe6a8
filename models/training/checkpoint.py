"""The checkpoint of a training run: weights as safetensors, and the state to resume from.

A checkpoint folder has `model.safetensors` (the weights, which the export reads), `optimizer.pt`
(tensors and plain values, loaded with `weights_only=True`) and `state.json`.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

WEIGHTS = "model.safetensors"
_OPTIMIZER = "optimizer.pt"
_STATE = "state.json"


@dataclass(frozen=True)
class TrainState:
    """The position of a run: the number of finished epochs."""

    epoch: int = 0


def save_checkpoint(
    folder: Path, network: nn.Module, optimizer: dict[str, Any], state: TrainState
) -> None:
    """Write a checkpoint into an empty folder.

    Args:
        folder: where to write.
        network: the network, without DDP's wrapper.
        optimizer: `state_dict()` of optimizer, schedule, scaler and compression, by name.
        state: position of the run.
    """
    # Copies, because safetensors refuses tensors that share memory, such as tied weights.
    weights = {name: t.cpu().clone().contiguous() for name, t in network.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    torch.save(optimizer, folder / _OPTIMIZER)
    (folder / _STATE).write_text(json.dumps(asdict(state)))


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load the weights of a checkpoint into a network of the same shape."""
    network.load_state_dict(load_file(folder / WEIGHTS))


def load_progress(folder: Path) -> tuple[dict[str, Any], TrainState]:
    """Return the states of optimizer, schedule, scaler and compression, and the run's position."""
    optimizer = torch.load(folder / _OPTIMIZER, weights_only=True, map_location="cpu")
    return optimizer, TrainState(**json.loads((folder / _STATE).read_text()))
