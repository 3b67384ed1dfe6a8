"""vLLM's engines: arguments, end tokens, the number of engines, and the Python that has vLLM."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from millrace.models.common.errors import InputError, TransientError
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton.language.language_config import engine_arguments

MAX_NUM_SEQS = 256
"""Answers that an engine works on at a time, unless the live engine is configured for more."""
SECONDS = 600
"""Time limit to start a process on a machine with a GPU and import vLLM there."""
SOME_OF_A_GPU = 0.01
"""Share of a GPU that a task reserves, so that Ray runs it on a machine with a GPU."""
NO_USAGE_STATS = {"VLLM_NO_USAGE_STATS": "1"}
"""Turns vLLM's usage statistics off. Millrace's DO_NOT_TRACK=true does not turn them off, because
vLLM does not read this value as true.
"""
QUESTION = (
    "import json, platform, ray, ray.data.llm, vllm; print(json.dumps("
    "{'python': platform.python_version(), 'ray': ray.__version__, 'vllm': vllm.__version__}))"
)
FEWER = "lower batch.num_actors or serving.generation.tensor_parallel_size"
ELSEWHERE = (
    "set RAY_ADDRESS to a cluster with GPUs, or set the alias champion to a version whose "
    "variant's name begins with openvino"
)


def engine_arguments_of(
    variant: Path, generation: GenerationSpec, batched_tokens: int | None = None
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's engine for a batch job.

    The arguments are those of the live engine, so that both engines fit beside each other. But
    nobody waits for a single answer of a batch job. So more answers are in progress at a time. And
    there is no draft model: it speeds up single answers, but slows down many answers at a time.

    Args:
        variant: the folder of the model's files, absolute.
        generation: how the model is served.
        batched_tokens: largest number of tokens in one iteration of the engine; None: vLLM chooses.
    """
    most = max(generation.max_num_seqs, MAX_NUM_SEQS)
    night = generation.model_copy(
        update={"max_num_seqs": most, "draft": None, "stream_interval": None}
    )
    arguments = engine_arguments(variant, night)
    if batched_tokens is not None:
        # Every answer in progress takes one token in each iteration of the engine.
        arguments["max_num_batched_tokens"] = max(batched_tokens, most)
    return arguments


def tokenizer_of(variant: Path) -> Any:
    """Return the tokenizer of a variant, read as vLLM reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(variant, local_files_only=True, trust_remote_code=False)


def ends_of(variant: Path) -> frozenset[int]:
    """Return the tokens at which vLLM ends an answer: the end tokens of tokenizer and config.

    As in `SamplingParams.update_from_generation_config` of vLLM 0.32.

    Args:
        variant: the folder of the model's files.
    """
    files = (variant / name for name in ("generation_config.json", "config.json"))
    config = json.loads(next(file for file in files if file.is_file()).read_text())
    end = config.get("eos_token_id")
    ends = set(end) if isinstance(end, list) else {end}
    return frozenset((ends | {tokenizer_of(variant).eos_token_id}) - {None})


def engines_of(wanted: int | None, gpus: float, gpus_each: int) -> int:
    """Return the number of engines.

    Args:
        wanted: the number in the pipeline file; None: as many as the GPUs allow.
        gpus: number of GPUs of Ray.
        gpus_each: number of GPUs of one engine.

    Raises:
        InputError: there are too few GPUs.
    """
    there = int(gpus)
    engines = wanted or max(there // gpus_each, 1)
    if engines * gpus_each <= there:
        return engines
    raise InputError(
        "there are too few GPUs for vLLM" if there else "there is no GPU for vLLM",
        seen=f"Ray has {there or 'no'} GPU{'s' * (there > 1)}",
        valid=f"at least {engines * gpus_each}: batch.num_actors ({engines}) times "
        f"serving.generation.tensor_parallel_size ({gpus_each})",
        hint=FEWER if there else ELSEWHERE,
    )


def gpus_of_ray() -> float:
    """Return the number of GPUs of the connected Ray, used or not."""
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return there.get("GPU", 0.0)


def runtime_env_of(python: Path | None) -> dict[str, Any]:
    """Return the runtime environment of the processes that run an engine.

    Args:
        python: the Python of an environment with vLLM, at the same path on every machine with a
            GPU; None: the Python of Ray itself.
    """
    found: dict[str, Any] = {"env_vars": NO_USAGE_STATS}
    # Ray puts the path into a bash command without quoting it.
    return found if python is None else {**found, "py_executable": shlex.quote(str(python))}


def vllm_version(python: Path | None, seconds: float = SECONDS) -> str:
    """Return the version of vLLM where Ray would start an engine.

    Args:
        python: as for `runtime_env_of`.
        seconds: time limit to get a GPU and to import vLLM.

    Raises:
        InputError: vLLM is missing, or Ray or Python has another version than in this process.
        TransientError: there was no answer in time.
    """
    options = {"num_cpus": 0, "num_gpus": SOME_OF_A_GPU, "max_retries": 0}
    task = ray.remote(inspect_python).options(**options).remote(python)
    try:
        found = ray.get(task, timeout=seconds)
    except ray.exceptions.RayError as error:
        ray.cancel(task, force=True)
        raise TransientError(
            "the version of vLLM on the machines with a GPU could not be read",
            seen=f"no answer in {seconds:g} s"
            if isinstance(error, ray.exceptions.GetTimeoutError)
            else str(error).partition("\n")[0],
            hint="check with `ray status` whether other jobs use the GPUs, and try again",
        ) from error
    return require_versions(found, python)


def inspect_python(python: Path | None) -> dict[str, str]:
    """Return the versions of vLLM, Ray and Python on this machine; runs in a task of Ray.

    Args:
        python: as for `runtime_env_of`.

    Returns:
        The versions, by the names `vllm`, `ray` and `python`. Or only `fault`: why the versions
        cannot be read.
    """
    command = [str(python or sys.executable), "-c", QUESTION]
    environment = {**os.environ, **NO_USAGE_STATS}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    except OSError as error:
        return {"fault": str(error)}
    except subprocess.CalledProcessError as error:
        return {"fault": (error.stderr.strip().splitlines() or ["it ended without a message"])[-1]}
    # the last line, because vLLM also logs to stdout
    found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def require_versions(found: Mapping[str, str], python: Path | None) -> str:
    """Return the version of vLLM, after a check of the versions of Ray and Python.

    Args:
        found: what `inspect_python` returned.
        python: the Python that was inspected.

    Raises:
        InputError: vLLM is missing, or Ray or Python has another version than in this process.
    """
    own = {"python": _short(platform.python_version()), "ray": ray.__version__}
    fault = found.get("fault")
    if fault is None:
        others = {"python": _short(found["python"]), "ray": found["ray"]}
        if others == own:
            return found["vllm"]
        fault = f"Python {others['python']} with ray {others['ray']}"
    raise InputError(
        "the Python environment of vLLM cannot be used for the batch job",
        seen=f"{fault}, reported by {python or 'the Python of Ray'}",
        valid=f"Python {own['python']} with vllm and ray[data]=={own['ray']}",
        hint="install these versions in one environment on every machine with a GPU, and set "
        "MILLRACE_VLLM_PYTHON to its Python",
    )


def _short(version: str) -> str:
    return version.rpartition(".")[0]
