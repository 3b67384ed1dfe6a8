"""Measures a variant of a language model against transformers, in a subprocess."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.transformers_reference import Reference
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
    speed = TypeAdapter(LanguageSpeed).validate_python(probe["speed"])
    return LanguageCandidate(name, variant.path, variant.digest, size, speed, stage)


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
    tokens_only: bool = False,
    python: Path | None = None,
) -> dict[str, Any]:
    """Run `language_probe` on a variant, and return its results.

    Args:
        variant: folder of the variant.
        reference: folder with the results of transformers.
        context: the model's context length in tokens.
        threads: threads that serving will use.
        limits: time and memory limits of the subprocess.
        tokens_only: whether to compare only greedy tokens and tokenization.
        python: Python interpreter of the subprocess; None for the current interpreter.

    Raises:
        WorkError: the probe failed, or exceeded the limits.
    """
    options: list[str | Path] = [variant, reference, "--context", str(context)]
    options += ["--threads", str(threads)]
    options += ["--tokens-only"] if tokens_only else []
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
