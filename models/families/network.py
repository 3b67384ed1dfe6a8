"""The modules around a family's module: preprocessing before it, the activation after it."""

from typing import cast

import torch
from torch import Tensor, nn

from millrace.models.families.objective import Objective
from millrace.models.inference.features import Encoding


class Preprocess(nn.Module):
    """Standardizes and one-hot encodes raw `features`; part of the exported ONNX graph.

    The input is float32 `[rows, raw_width]`, the output float32 `[rows, in_features]`: first
    numbers and vectors, standardized with the train split's mean and deviation, then one-hot
    categories. A missing number becomes the mean (zero after scaling), a missing category all
    zeros.
    """

    mean: Tensor
    scale: Tensor
    places: Tensor

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        mean: list[float] = []
        scale: list[float] = []
        places: list[int] = []
        self.categories: list[tuple[int, int]] = []
        position = 0
        for feature in encoding.features:
            if feature.kind == "category":
                self.categories.append((position, len(feature.categories)))
            else:
                mean += [feature.mean] * feature.width
                scale += [1 / feature.std] * feature.width
                places += range(position, position + feature.width)
            position += feature.width
        self.fills_missing = any(f.nullable for f in encoding.features if f.kind != "category")
        # These buffers are not in the checkpoint: the encoding, stored beside it, determines them.
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)
        self.register_buffer("places", torch.tensor(places, dtype=torch.long), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map `[rows, raw_width]` to `[rows, in_features]`."""
        parts = []
        if self.places.numel():
            # Without categories the numbers are the whole input, in order: no gather is needed.
            numbers = features.index_select(1, self.places) if self.categories else features
            scaled = (numbers - self.mean) * self.scale
            parts.append(torch.nan_to_num(scaled, nan=0.0) if self.fills_missing else scaled)
        for place, size in self.categories:
            codes = torch.arange(size, dtype=features.dtype, device=features.device)
            parts.append((features[:, place : place + 1] == codes).to(features.dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class Network(nn.Module):
    """The trained module: preprocessing and the family's module, from `features` to logits.

    Tokens go to the family's module unchanged.
    """

    def __init__(self, encoding: Encoding, net: nn.Module) -> None:
        super().__init__()
        self.preprocess = Preprocess(encoding) if encoding.tokenizer is None else nn.Identity()
        self.net = net

    def forward(self, features: Tensor) -> Tensor:
        """Return logits float32 `[rows, outputs]`."""
        return cast(Tensor, self.net(self.preprocess(features)))


class Served(nn.Module):
    """The exported module: the network, followed by the objective's activation."""

    def __init__(self, network: Network, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective

    def forward(self, features: Tensor) -> Tensor:
        """Return what clients get, float32 `[rows, outputs]`: probabilities or the prediction."""
        return self.objective.activation(self.network(features).float())
