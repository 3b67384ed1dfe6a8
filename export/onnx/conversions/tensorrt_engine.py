"""A TensorRT engine of an ONNX model, by TensorRT's own API.

The engine computes in the types that the graph says: a TensorRT network is strongly typed, the
only kind that TensorRT 11 has. Products of float32 are not rounded to TF32. It runs with this GPU,
this driver and this version of TensorRT and no other ones. Not run on a GPU yet.
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
        smallest: so largest.
        best: the size that kernels are chosen for.
    """

    smallest: int
    best: int
    largest: int


def axis(word: str) -> tuple[str, Range]:
    """Read `NAME=SMALLEST:BEST:LARGEST`, a dynamic dimension and its sizes."""
    name, _, sizes = word.partition("=")
    try:
        smallest, best, largest = (int(size) for size in sizes.split(":"))
    except ValueError:
        raise ArgumentTypeError(f"{word!r} is not NAME=SMALLEST:BEST:LARGEST") from None
    if not name or not 0 < smallest <= best <= largest:
        raise ArgumentTypeError(f"{word!r} is not in order, from 1 on")
    return name, Range(smallest, best, largest)


def shapes(model: Any, axes: Mapping[str, Range]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the smallest, best and largest shape of each input that has a dynamic dimension.

    Args:
        model: the ONNX model.
        axes: the sizes of each dynamic dimension, by its name in the graph.

    Raises:
        KeyError: a dynamic dimension that no sizes are given for.
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
    """Read the ONNX file into a network, or end the program with what the parser says."""
    onnx_parser = trt.OnnxParser(network, logger)
    if not onnx_parser.parse(source.read_bytes()):
        errors = [str(onnx_parser.get_error(n)) for n in range(onnx_parser.num_errors)]
        sys.exit(f"TensorRT cannot read the model: {'; '.join(errors) or 'no reason given'}")


def main() -> None:
    """Build one engine."""
    made = parser(__doc__)
    made.add_argument(
        *("--axis",), type=axis, action="append", default=[], help="NAME=SMALLEST:BEST:LARGEST"
    )
    made.add_argument("--timing-cache", type=Path, help="kept from one build to the next")
    made.add_argument("--workspace", type=int, help="bytes of GPU memory for kernels; all if unset")
    given = made.parse_args()
    model = onnx.load(given.source)
    try:
        profile_shapes = shapes(model, dict(given.axis))
    except KeyError as error:
        sys.exit(f"the dynamic dimension {error} has no sizes: give --axis NAME=1:BEST:LARGEST")
    given.target.write_bytes(built(given, profile_shapes))


def built(given: Any, profile_shapes: Mapping[str, tuple[tuple[int, ...], ...]]) -> bytes:
    """Return the engine.

    Args:
        given: the command line.
        profile_shapes: of the inputs with dynamic dimensions.
    """
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    # The flag says nothing to TensorRT 11, where every network is so, and what to do to 10.
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
        sys.exit("TensorRT built no engine; run the command by hand to read its log")
    if cache:
        _keep(cache, bytes(config.get_timing_cache().serialize()))
    return bytes(engine)


def _keep(cache: Path, contents: bytes) -> None:
    """Replace the cache as a whole: another build may read it, or write its own, now."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        draft = Path(folder) / cache.name
        draft.write_bytes(contents)
        draft.replace(cache)


if __name__ == "__main__":
    main()
