"""Continue the texts on stdin greedily: `python -m millrace.export.language.golden_texts VARIANT`.

In a process of its own; with the engine's own tokenizer and detokenizer, as serving does it. So a
release can ask the same, and see the variant answer what it answered when it was certified.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.export.language.engine_speed import CACHE_GIB, EXACT
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.vllm.vllm_engine import VllmEngine
from millrace.models.common.language_generation import ends_of, greedy_config, prompt_ids, shown_ids
from millrace.models.common.quiet import disable_openvino_telemetry
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

if TYPE_CHECKING:
    from millrace.export.language.transformers_reference import Reference


@dataclass(frozen=True)
class Golden:
    """What a variant was asked and answered when it was certified.

    Attributes:
        prompts: texts.
        answers: what it continued each with, greedily.
        max_tokens: of an answer.
        exact: whether the variant computes in float32, so that an answer is the same whatever else
            the engine works on.
        transformers: what transformers continues each with.
    """

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    max_tokens: int
    exact: bool
    transformers: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1)


def make_golden(
    variant: VariantFolder,
    reference: "Reference",
    limits: Limits,
    threads: int,
    vllm_python: Path | None = None,
) -> Golden:
    """Return what a variant answers.

    Args:
        variant: the folder.
        reference: what transformers continued, and with what.
        limits: what the process may take.
        threads: threads that serving will use.
        vllm_python: the Python of an environment that has vLLM; None for this one.

    Raises:
        WorkError: it does not answer, or takes more than the limits.
    """
    words: list[str | Path] = [variant.path, "--threads", str(threads)]
    words += ["--new", str(reference.new_tokens)]
    prompts = tuple(prompt for prompt, _ in reference.texts)
    given = json.dumps(prompts).encode()
    output = run_in_subprocess(
        "millrace.export.language.golden_texts",
        words,
        limits,
        what="its golden answers",
        stdin=given,
        python=vllm_python if variant.engine == "vllm" else None,
        retry_killed=False,
    )
    answers = json.loads(output.splitlines()[-1])
    return Golden(
        prompts,
        tuple(answers),
        max_tokens=reference.new_tokens,
        exact=variant.properties == EXACT,
        transformers=tuple(answer for _, answer in reference.texts),
    )


def answer_prompts(
    variant: Path, prompts: Sequence[str], new: int, properties: dict[str, Any]
) -> list[str]:
    """Continue all texts at once, by `new` tokens each at most."""
    disable_openvino_telemetry()
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    pipeline = genai.ContinuousBatchingPipeline(variant, scheduler, "CPU", properties)
    tokenizer, defaults = pipeline.get_tokenizer(), pipeline.get_config()
    config = greedy_config(defaults, new)
    ids = [openvino.Tensor(prompt_ids(tokenizer, each, is_chat=False)) for each in prompts]
    results = pipeline.generate(ids, [config] * len(ids))
    shown = [list(shown_ids(each.m_generation_ids[0], ends_of(defaults))) for each in results]
    return [str(text) for text in tokenizer.decode(shown)]


def main() -> None:
    """Answer what is on stdin."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("variant", type=Path)
    made.add_argument("--threads", type=int, required=True)
    made.add_argument("--new", type=int, required=True)
    given = made.parse_args()
    variant, prompts = VariantFolder.read(given.variant), json.loads(sys.stdin.buffer.read())
    if variant.engine == "vllm":
        answers = VllmEngine(variant.path).texts(prompts, given.new)
    else:
        properties = {"INFERENCE_NUM_THREADS": given.threads, **variant.properties}
        answers = answer_prompts(variant.path, prompts, given.new, properties)
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
