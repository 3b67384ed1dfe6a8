"""Measure one variant: `python -m millrace.export.language.language_probe VARIANT REFERENCE`.

The program runs in its own process, so that a crash ends nothing else, and the measured memory is
that of the variant. It prints the results as one line of JSON.
"""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millrace.export.language.engine_speed import STREAMS, Engine, OnnxEngine, Properties, speed_of
from millrace.export.language.fidelity import Fidelity, compare_tokens, fidelity, plain_inference
from millrace.export.language.token_pieces import TokenPieces, speed_lengths
from millrace.export.language.transformers_reference import PIECES, TEXTS, read_answers
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.vllm.vllm_engine import VllmEngine
from millrace.models.common.other_programs import measure_quietly
from millrace.models.common.quiet import disable_openvino_telemetry
from millrace.models.common.subprocess_runner import peak_memory

THREADS = "INFERENCE_NUM_THREADS"
AnyEngine = Engine | OnnxEngine | VllmEngine


def exactness(engine: AnyEngine, reference: Path) -> dict[str, Any]:
    """Count the greedy continuations and the tokenized texts that equal those of transformers."""
    answers = read_answers(reference)
    continuation = engine.run([each.prompt for each in answers], len(answers[0].tokens))
    texts = json.loads((reference / TEXTS).read_text())
    alike = sum(engine.token_ids(text) == wanted for text, wanted in texts)
    greedy = asdict(compare_tokens(answers, continuation.tokens))
    return {"greedy": greedy, "texts": len(texts), "texts_equal": alike}


def measure_variant(
    variant: VariantFolder, reference: Path, properties: Properties, room: int
) -> Any:
    """Return all measurements of a variant.

    Args:
        variant: folder of the variant.
        reference: folder with the results of transformers.
        properties: OpenVINO properties of the device, for plain inference and for the engine.
        room: the model's context length in tokens.
    """
    pieces = TokenPieces.read(reference / PIECES)
    near, engine = open_variant(variant, pieces, reference, properties)
    found = exactness(engine, reference)
    return {**found, "fidelity": asdict(near), **measure_speed(engine, pieces, room)}


def measure_speed(engine: AnyEngine, pieces: TokenPieces, room: int) -> dict[str, Any]:
    """Return the speed of a loaded engine, and the peak memory of this process."""
    prompt, new = speed_lengths(room)
    prompts = pieces.prompts(max(STREAMS), (prompt,))
    if isinstance(engine, VllmEngine):  # a GPU, whose memory and other users are not measured
        return {"speed": asdict(speed_of(engine.run, prompts, new))}
    from millrace.models.common.hardware import this_machine  # needs psutil, which vLLM's may lack

    speed, others = measure_quietly(
        lambda: speed_of(engine.run, prompts, new), this_machine().cores
    )
    speed = replace(speed, other_load=others, peak_memory_bytes=peak_memory())
    return {"speed": asdict(speed)}


def open_variant(
    variant: VariantFolder, pieces: TokenPieces, reference: Path, properties: Properties
) -> tuple[Fidelity, AnyEngine]:
    """Return a variant's differences from transformers, and its loaded engine."""
    if variant.is_onnx:
        onnx = OnnxEngine(variant.path, int(properties[THREADS]))
        return fidelity(onnx.logits_of, pieces, reference), onnx
    if variant.engine == "vllm":
        vllm = VllmEngine(variant.path)
        return fidelity(vllm.logits_of, pieces, reference), vllm
    import openvino

    compiled = openvino.Core().compile_model(variant.ir, "CPU", dict(properties))
    near = fidelity(plain_inference(compiled), pieces, reference)
    del compiled  # frees memory, because the engine compiles the model again
    return near, Engine(variant.path, properties)


def main() -> None:
    """Measure one variant."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("variant", type=Path)
    made.add_argument("reference", type=Path)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument(
        "--tokens-only", action="store_true", help="compare only greedy tokens and tokenization"
    )
    made.add_argument(
        "--speed-only", action="store_true", help="measure only the speed, on REFERENCE's text"
    )
    given = made.parse_args()
    disable_openvino_telemetry()
    variant = VariantFolder.read(given.variant)
    properties = {THREADS: given.threads, **variant.properties}
    if given.tokens_only:
        found = exactness(Engine(variant.path, properties), given.reference)
    elif given.speed_only:
        pieces = TokenPieces.read(given.reference / PIECES)
        found = measure_speed(Engine(variant.path, properties), pieces, given.context)
    else:
        found = measure_variant(variant, given.reference, properties, given.context)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
