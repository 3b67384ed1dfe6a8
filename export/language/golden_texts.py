"""Continue the texts on stdin greedily: `python -m millrace.export.language.golden_texts VARIANT`.

The program runs in its own process and uses the engine's tokenizer and detokenizer, as serving
does. A release sends the same prompts to Triton, and compares Triton's continuations with those of
this program.
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
    """Prompts, and a variant's greedy continuations of them when it was certified.

    Attributes:
        prompts: prompts as text.
        answers: the variant's continuation of each prompt.
        max_tokens: largest number of tokens of a continuation.
        exact: whether the variant computes in float32, so that continuations do not depend on other
            requests in the same batch.
        transformers: transformers' continuation of each prompt.
    """

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    max_tokens: int
    exact: bool
    transformers: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the prompts and continuations as JSON."""
        return json.dumps(asdict(self), indent=1)


def make_golden(
    variant: VariantFolder,
    reference: "Reference",
    limits: Limits,
    threads: int,
    vllm_python: Path | None = None,
) -> Golden:
    """Run a variant on the golden prompts; return the prompts and the variant's continuations.

    Args:
        variant: folder of the variant.
        reference: results of transformers: the prompts, and transformers' continuations.
        limits: time and memory limits of the subprocess.
        threads: threads that serving will use.
        vllm_python: Python interpreter that has vLLM; None for the current interpreter.

    Raises:
        WorkError: the variant cannot be run, or the run exceeded the limits.
    """
    words: list[str | Path] = [variant.path, "--threads", str(threads)]
    words += ["--new", str(reference.new_tokens)]
    prompts = tuple(prompt for prompt, _ in reference.texts)
    given = json.dumps(prompts).encode()
    output = run_in_subprocess(
        "millrace.export.language.golden_texts",
        words,
        limits,
        what="its run on the golden prompts",
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
    """Return the greedy continuations of texts, of at most `new` tokens each, run all at once."""
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
    """Continue the texts on stdin, a JSON list, and print the continuations as JSON."""
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
