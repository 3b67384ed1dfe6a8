"""Quantizes a decoder's weights to 8 or 4 bits with nncf; activations are not quantized.

Reads a variant's folder and writes a new one: the OpenVINO model is converted, the other files are
copied. Calibration text is an npz file with int64 `input_ids` and the int64 `lengths` of its
chunks.
"""

import logging
import shutil
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

IR = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
ENGINE = "engine.json"
"""File with the engine settings of `openvino-fp32`. It is not copied, so a quantized variant runs
with the engine's faster defaults."""
MODES = ("int8_asym", "int8_sym", "int4_asym", "int4_sym")


def texts(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the decoder's inputs for each chunk of the calibration text."""
    with np.load(path, allow_pickle=False) as file:
        ids, lengths = file["input_ids"], file["lengths"]
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        piece = ids[None, end - length : end]
        yield {
            "input_ids": piece,
            "attention_mask": np.ones_like(piece),
            "position_ids": np.arange(length, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }


def compressed(model: Any, given: Namespace) -> Any:
    """Return the model with its weights compressed by the options of the command line."""
    import nncf  # type: ignore[import-untyped,unused-ignore]

    options: dict[str, Any] = {}
    if given.mode.startswith("int4"):
        # a layer whose width the group size does not divide gets smaller groups, or 8 bits
        fallback = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
            min_adjusted_group_size=16,
        )
        options = {
            "group_size": given.group_size,
            "ratio": given.ratio,
            "awq": given.awq or None,
            "scale_estimation": given.scale_estimation or None,
            "advanced_parameters": fallback,
        }
    if given.calibration is not None:
        options["dataset"] = nncf.Dataset(list(texts(given.calibration)))
    mode = nncf.CompressWeightsMode(given.mode)
    return nncf.compress_weights(model, mode=mode, **options)


def in_four_bits(model: Any) -> bool:
    """Return whether any weights of a model have 4 bits."""
    constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
    return any(op.get_element_type().get_type_name() in ("u4", "i4") for op in constants)


def main() -> None:
    """Convert one folder."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("source", type=Path, help="folder of the variant to convert")
    made.add_argument("target", type=Path, help="folder to create")
    made.add_argument("--mode", choices=MODES, default="int8_asym")
    made.add_argument(
        "--group-size",
        type=int,
        default=64,
        help="number of weights that share a scale; -1: all weights of a row",
    )
    made.add_argument("--ratio", type=float, default=1.0, help="share of layers that get 4 bits")
    made.add_argument("--awq", action="store_true", help="activation-aware scaling of weights")
    made.add_argument(
        "--scale-estimation", action="store_true", help="choose scales by least squares"
    )
    made.add_argument("--calibration", type=Path, help="npz file with calibration text")
    given = made.parse_args()
    if (given.awq or given.scale_estimation) and given.calibration is None:
        made.error("--awq and --scale-estimation need --calibration")
    # The program's last line on stderr is shown as the reason of a failure, so warnings are off.
    # OpenVINO's telemetry is off too.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    model = compressed(openvino.Core().read_model(given.source / IR), given)
    if given.mode.startswith("int4") and not in_four_bits(model):
        sys.exit(
            f"no layer gets 4 bits with a group size of {given.group_size} and a ratio of "
            f"{given.ratio:g}: no layer's width is a multiple of 16, or the ratio is too small"
        )
    shutil.copytree(given.source, given.target, ignore=shutil.ignore_patterns(IR, WEIGHTS, ENGINE))
    openvino.save_model(model, given.target / IR, compress_to_fp16=False)


if __name__ == "__main__":
    main()
