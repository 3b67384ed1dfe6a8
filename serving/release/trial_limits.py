"""What a version may take to be tried: more for a larger one."""

from millrace.models.common.hardware import memory_bytes
from millrace.models.common.subprocess_runner import Limits
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.inference.language_engine import EngineName

ALONE = Limits(seconds=60.0, memory=16 << 30)
"""Of the smallest model; a larger one has more of both. Less memory where the machine has less."""
SHARE, MOST_SHARE = 0.5, 0.75
"""Of the machine's memory: for the smallest model, and for any. The rest is for what serves."""
LEAST = 4 << 30
"""Of address space, of which ONNX Runtime and OpenVINO reserve more than they use."""
BYTES_PER_SECOND = 16 << 20
"""What a model is given time for beyond that: a slow disk, and as many operations as weights."""
COPIES = 4
"""Of the weights in memory: the file, the graph, its optimized form, what is unpacked."""
LOAD_SECONDS = 120.0
ENGINE_SECONDS = 400.0
"""With an accelerator, which builds its engines while the version loads and warms up; vLLM compiles
too.
"""


def alone_limits(size: int) -> Limits:
    """Return what a model of so many bytes may take to be opened and to answer once."""
    return Limits(ALONE.seconds + size / BYTES_PER_SECOND, memory_limit(size, memory_bytes()))


def memory_limit(size: int, machine: int) -> int:
    """Return the bytes that a trial of a model of so many bytes may take on such a machine."""
    wanted = min(ALONE.memory, int(SHARE * machine)) + COPIES * size
    return max(LEAST, min(wanted, int(MOST_SHARE * machine)))


def load_seconds(serving: ServingSpec, size: int, engine: EngineName | None = None) -> float:
    """Return how long a version, a model of so many bytes, may take to load.

    Args:
        serving: how it is served.
        size: bytes of the model.
        engine: of a language model.
    """
    builds = serving.accelerator is not None or engine == "vllm"
    return (ENGINE_SECONDS if builds else LOAD_SECONDS) + size / BYTES_PER_SECOND
