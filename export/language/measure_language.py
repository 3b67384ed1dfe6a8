"""Measures a variant of a language model against transformers, in a subprocess."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.transformers_reference import PIECES, Reference
from millrace.export.language.variant_folder import VariantFolder
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess


def measure(
    name: str,
    variant: VariantFolder,
    folder: Path,
    reference: Reference,
    *,
    context: int,
    threads: int,
    limits: Limits,
    vllm_python: Path | None = None,
) -> LanguageCandidate:
    """Measure one variant.

    Args:
        name: the candidate's name.
        variant: folder of the variant.
        folder: folder with the results of transformers, the reference.
        reference: summary of these results.
        context: the model's context length in tokens.
        threads: threads that serving will use.
        limits: time and memory limits of the subprocess.
        vllm_python: Python interpreter that has vLLM; None for the current interpreter.

    Raises:
        WorkError: the variant cannot be loaded or run, or the measurement exceeded the limits.
    """
    python = vllm_python if variant.engine == "vllm" else None
    probe = run_probe(
        variant.path, folder, context=context, threads=threads, limits=limits, python=python
    )
    near = probe["fidelity"]
    size = variant.size_bytes
    stage = LanguageStage(
        name,
        perplexity=near["perplexity"],
        perplexity_increase=near["perplexity"] / reference.perplexity - 1,
        mean_kl=near["mean_kl"],
        top1_agreement=near["top1_agreement"],
        tokens=near["tokens"],
        size_bytes=size,
        **exactness_of(probe),
    )
    speed = _speed_of(probe)
    return LanguageCandidate(name, variant.path, variant.digest, size, speed, stage)


def measure_speed(
    variant: Path, pieces: TokenPieces, *, context: int, threads: int, limits: Limits
) -> LanguageSpeed:
    """Measure only the speed of a variant for OpenVINO.

    Args:
        variant: folder of the variant.
        pieces: the text that prompts are cut from.
        context: the model's context length in tokens.
        threads: threads that serving uses.
        limits: time and memory limits of the subprocess.

    Raises:
        WorkError: the variant cannot be loaded or run, or the measurement exceeded the limits.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pieces.write(folder / PIECES)
        probe = run_probe(
            variant, folder, context=context, threads=threads, limits=limits, only="--speed-only"
        )
    return _speed_of(probe)


def _speed_of(probe: Mapping[str, Any]) -> LanguageSpeed:
    return TypeAdapter(LanguageSpeed).validate_python(probe["speed"])


def exactness_of(probe: dict[str, Any]) -> dict[str, int]:
    """Return a probe's counts of equal tokens, as keyword arguments of `LanguageStage`."""
    greedy = probe["greedy"]
    return {
        "prompts": greedy["prompts"],
        "greedy_equal": greedy["equal"],
        "greedy_ties": greedy["ties"],
        "texts": probe["texts"],
        "texts_equal": probe["texts_equal"],
    }


def run_probe(
    variant: Path,
    reference: Path,
    *,
    context: int,
    threads: int,
    limits: Limits,
    only: str | None = None,
    python: Path | None = None,
) -> dict[str, Any]:
    """Run `language_probe` on a variant, and return its results.

    Args:
        variant: folder of the variant.
        reference: folder with the results of transformers.
        context: the model's context length in tokens.
        threads: threads that serving will use.
        limits: time and memory limits of the subprocess.
        only: option of the probe that measures a part; None: all is measured.
        python: Python interpreter of the subprocess; None for the current interpreter.

    Raises:
        WorkError: the probe failed, or exceeded the limits.
    """
    options: list[str | Path] = [variant, reference, "--context", str(context)]
    options += ["--threads", str(threads)]
    options += [only] if only else []
    output = run_in_subprocess(
        "millrace.export.language.language_probe",
        options,
        limits,
        what="its measurement",
        python=python,
        retry_killed=False,
    )
    probe: dict[str, Any] = json.loads(output.splitlines()[-1])
    return probe
