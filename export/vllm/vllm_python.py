"""Where vLLM is, and whether it can measure a variant here.

It pins other releases of torch and transformers than Millrace does, so as a rule it has an
environment of its own, and is run by the Python of that.
"""

from importlib.util import find_spec
from pathlib import Path

from millrace.models.common.hardware import this_gpu


def lacking_vllm(python: Path | None) -> str | None:
    """Return why vLLM cannot measure a variant on this machine, or None if nothing is known.

    Args:
        python: the Python of an environment that has vLLM; None for this one.
    """
    if this_gpu() is None:
        return "vLLM measures it on an NVIDIA GPU, and there is none here"
    if python is None and find_spec("vllm") is None:
        return "vLLM is not installed here: MILLRACE_VLLM_PYTHON names a Python that has it"
    if python is not None and not python.is_file():
        return f"MILLRACE_VLLM_PYTHON names no Python: there is no {python}"
    return None
