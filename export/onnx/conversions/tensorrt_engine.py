"""Builds a TensorRT engine of an ONNX model with TensorRT's own API.

The engine computes in the number types of the ONNX graph, because the TensorRT network is strongly
typed (TensorRT 11 has no other kind). Products of float32 are not rounded to TF32. The engine runs
only with the GPU, driver and version of TensorRT that it was built with. This program has not been
run on a GPU yet.
"""

import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from .arguments import parser


@dataclass(frozen=True)
class Range:
    """The sizes that one dynamic dimension may have.

    Attributes:
        smallest: smallest size.
        best: the size that kernels are optimized for.
        largest: largest size.
    """

    smallest: int
    best: int
    largest: int


def axis(word: str) -> tuple[str, Range]:
    """Parse `NAME=SMALLEST:BEST:LARGEST`, a dynamic dimension and its sizes."""
    name, _, sizes = word.partition("=")
    try:
        smallest, best, largest = (int(size) for size in sizes.split(":"))
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not NAME=SMALLEST:BEST:LARGEST") from None
    if not name or not 0 < smallest <= best <= largest:
        raise ArgumentTypeError(f"{word!r} needs a name and ascending sizes from 1")
    return name, Range(smallest, best, largest)


def shapes(model: Any, axes: Mapping[str, Range]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the smallest, best and largest shape of each input that has a dynamic dimension.

    Args:
        model: the ONNX model.
        axes: the sizes of each dynamic dimension, by its name in the ONNX graph.

    Raises:
        KeyError: a dynamic dimension has no sizes in `axes`.
    """
    weights = {each.name for each in model.graph.initializer}
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in weights or all(dim.HasField("dim_value") for dim in dims):
            continue
        sizes = [_sizes(dim, axes) for dim in dims]
        smallest, best, largest = zip(
            *((each.smallest, each.best, each.largest) for each in sizes), strict=True
        )
        found[value.name] = (smallest, best, largest)
    return found


def _sizes(dim: Any, axes: Mapping[str, Range]) -> Range:
    if dim.HasField("dim_value"):
        return Range(dim.dim_value, dim.dim_value, dim.dim_value)
    return axes[dim.dim_param]


def parsed(trt: Any, logger: Any, network: Any, source: Path) -> None:
    """Parse the ONNX file into a network, or exit with the parser's errors."""
    onnx_parser = trt.OnnxParser(network, logger)
    if not onnx_parser.parse(source.read_bytes()):
        errors = [str(onnx_parser.get_error(n)) for n in range(onnx_parser.num_errors)]
        sys.exit(f"TensorRT cannot read the model: {'; '.join(errors) or 'no reason given'}")


def main() -> None:
    """Build one engine."""
    made = parser(__doc__)
    made.add_argument(
        *("--axis",),
        type=axis,
        action="append",
        default=[],
        help="sizes of a dynamic dimension: NAME=SMALLEST:BEST:LARGEST",
    )
    made.add_argument("--timing-cache", type=Path, help="file that speeds up later builds")
    made.add_argument("--workspace", type=int, help="bytes of GPU memory for kernels; default: all")
    given = made.parse_args()
    model = onnx.load(given.source)
    try:
        profile_shapes = shapes(model, dict(given.axis))
    except KeyError as error:
        sys.exit(f"the dynamic dimension {error} has no sizes: give --axis NAME=1:BEST:LARGEST")
    given.target.write_bytes(built(given, profile_shapes))


def built(given: Any, profile_shapes: Mapping[str, tuple[tuple[int, ...], ...]]) -> bytes:
    """Return the serialized engine.

    Args:
        given: parsed command line.
        profile_shapes: smallest, best and largest shape of each input with dynamic dimensions.
    """
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    # TensorRT 10 needs this flag; in TensorRT 11 every network is strongly typed.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parsed(trt, logger, network, given.source)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    if given.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, given.workspace)
    if profile_shapes:
        profile = builder.create_optimization_profile()
        for name, (smallest, best, largest) in profile_shapes.items():
            profile.set_shape(name, smallest, best, largest)
        config.add_optimization_profile(profile)
    cache = given.timing_cache
    known = cache.read_bytes() if cache and cache.exists() else b""
    config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        sys.exit("TensorRT built no engine; run its command in commands.sh by hand to see why")
    if cache:
        _keep(cache, bytes(config.get_timing_cache().serialize()))
    return bytes(engine)


def _keep(cache: Path, contents: bytes) -> None:
    """Replace the cache atomically, because another build may read or write it at the same time."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        draft = Path(folder) / cache.name
        draft.write_bytes(contents)
        draft.replace(cache)


if __name__ == "__main__":
    main()
