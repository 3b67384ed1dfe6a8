"""What training rounds is what the static int8 variant will."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.conversions.int8_static import Ranges, quantize
from millrace.models.config.compression_spec import QuantizationAwareSpec
from millrace.models.inference.features import FEATURES
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.training.compression.compression import FakeQuantization


def ranges_in(int8: Path) -> list[torch.Tensor]:
    """Return the range of what each layer reads, out of the scales and zero points in a file."""
    graph = onnx.load(int8).graph
    known = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    pairs = [
        (known[node.input[1]], known[node.input[2]])
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    ]
    return [torch.tensor([(end - int(zero)) * scale for end in (0, 255)]) for scale, zero in pairs]


def test_training_sees_the_answers_of_the_int8_form(exported: Any, tmp_path: Path) -> None:
    rows = exported.rows(256)
    calibration, int8 = tmp_path / "calibration.npz", tmp_path / "int8.onnx"
    batch_file.write(calibration, [{FEATURES: rows}])
    quantize(exported.path, int8, calibration, Ranges())
    rounding = FakeQuantization(QuantizationAwareSpec(start=0.0), exported.served.network, 1)
    rounding.load_state_dict({"ranges": ranges_in(int8)})
    rounding.begin_epoch(0)
    with rounding, torch.no_grad():
        found = exported.served(torch.from_numpy(rows)).numpy()
    served = OnnxSession(int8).answer(rows)
    lost = np.abs(exported.answer(rows) - served).mean()
    assert np.abs(found - served).mean() < 0.1 * lost
