"""A Python-based Triton backend for text classifiers: tokenizer and ONNX graph in one step.

A version's folder has `tokenizer.json` beside `model.onnx`. The input is `text`, one string per
row; the output is that of the ONNX graph. The backend needs Triton's python backend, `onnxruntime`
and `tokenizers`, on a laptop as in NVIDIA's container, and imports nothing of Millrace.
`text_session` is a copy of `model.py` of the backend `onnxruntime`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from text_session import TritonPythonModel as OnnxModel  # type: ignore[import-not-found]
from text_session import check_names
from text_tokens import TextBatcher  # type: ignore[import-not-found]

Array = npt.NDArray[Any]
TEXT = "text"


class TritonPythonModel(OnnxModel):  # type: ignore[misc]
    """One instance of one model version: a tokenizer and an ONNX Runtime session."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open tokenizer and session; an exception here makes Triton refuse the version."""
        version = Path(args["model_repository"]) / args["model_version"]
        self.batcher = TextBatcher(version / "tokenizer.json")
        super().initialize(args)

    def check(self) -> None:
        """Raise an error if config.pbtxt names a tensor that the version does not have."""
        outputs = [node.name for node in self.session.get_outputs()]
        check_names("input", self.inputs, [TEXT])
        check_names("output", self.outputs, outputs)
        self.text_inputs = {TEXT}
        self.input_name, self.output_name = self.session.get_inputs()[0].name, outputs[0]

    def _run(self, requests: list[Any], feeds: list[dict[str, Array]]) -> list[Any]:
        texts = np.concatenate([feed[TEXT].ravel() for feed in feeds]).tolist()
        ends = np.cumsum([len(feed[TEXT]) for feed in feeds])[:-1]
        outputs = np.split(self._run_texts(texts), ends)
        return [self.response({self.output_name: output}) for output in outputs]

    def _run_texts(self, texts: list[str]) -> Array:
        """Return the output for all texts, in the order of the texts."""
        positions, outputs = [], []
        for rows, ids in self.batcher.batches(texts):
            positions.append(rows)
            outputs.append(self.session.run([self.output_name], {self.input_name: ids})[0])
        found: Array = np.concatenate(outputs)[np.argsort(np.concatenate(positions))]
        return found
