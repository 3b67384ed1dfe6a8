"""The first step of the ensemble of T1 to T3: a Triton Python model, `text` to `input_ids`."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer


class TritonPythonModel:
    """A tokenizer that pads each request to its longest text."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open `tokenizer.json` of the version."""
        folder = Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by itself, so that it is not padded to the length of another."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()
        found = self.tokenizer.encode_batch_fast([text.decode() for text in texts])
        ids = np.array([each.ids for each in found], dtype=np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("input_ids", ids)])
