"""Measure one variant: `python -m millrace.export.language.language_probe VARIANT REFERENCE`.

It runs in its own process: a crash ends nothing else, and the memory measured is the variant's.
What it measured is one line of JSON on stdout.
"""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from millrace.export.language.engine_speed import STREAMS, Engine, Properties, speed_of
from millrace.export.language.fidelity import Fidelity, compared, fidelity, plain_inference
from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.transformers_reference import PIECES, TEXTS, read_answers
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.onnx.genai_engine import OnnxEngine
from millrace.export.openvino.quiet_openvino import send_nothing
from millrace.export.vllm.vllm_engine import VllmEngine
from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import peak_memory

THREADS = "INFERENCE_NUM_THREADS"
AnyEngine = Engine | OnnxEngine | VllmEngine


def exactness(engine: AnyEngine, reference: Path) -> dict[str, Any]:
    """Return how the engine's tokens compare with transformers', and the variant's tokenizer."""
    answers = read_answers(reference)
    told = engine.run([each.prompt for each in answers], len(answers[0].tokens))
    texts = json.loads((reference / TEXTS).read_text())
    alike = sum(engine.token_ids(text) == wanted for text, wanted in texts)
    greedy = asdict(compared(answers, told.tokens))
    return {"greedy": greedy, "texts": len(texts), "texts_equal": alike}


def measured(variant: VariantFolder, reference: Path, properties: Properties, room: int) -> Any:
    """Return all that is measured of a variant.

    Args:
        variant: the folder.
        reference: what transformers answered.
        properties: of the device, for plain inference and for the engine.
        room: tokens of the context.
    """
    pieces = TokenPieces.read(reference / PIECES)
    near, engine = opened(variant, pieces, reference, properties)
    found = exactness(engine, reference)
    prompt, new = speed_lengths(room)
    speed = speed_of(engine.run, pieces.prompts(max(STREAMS), (prompt,)), new)
    if not isinstance(engine, VllmEngine):  # whose memory is the GPU's
        speed = replace(speed, peak_memory_bytes=peak_memory())
    return {**found, "fidelity": asdict(near), "speed": asdict(speed)}


def opened(
    variant: VariantFolder, pieces: TokenPieces, reference: Path, properties: Properties
) -> tuple[Fidelity, AnyEngine]:
    """Return how near a variant is to the reference, and the engine that it is for."""
    if variant.is_onnx:
        onnx = OnnxEngine(variant.path, int(properties[THREADS]))
        return fidelity(onnx.logits_of, pieces, reference), onnx
    if variant.engine == "vllm":
        vllm = VllmEngine(variant.path)
        return fidelity(vllm.logits_of, pieces, reference), vllm
    import openvino

    compiled = openvino.Core().compile_model(variant.ir, "CPU", dict(properties))
    near = fidelity(plain_inference(compiled), pieces, reference)
    del compiled  # the engine compiles it again, its own way
    return near, Engine(variant.path, properties)


def speed_lengths(room: int) -> tuple[int, int]:
    """Return the tokens of a timed prompt and of its answer, which a context has room for.

    Raises:
        WorkError: it has none for both.
    """
    prompt, new = min(64, room // 2), min(64, room - room // 2)
    if prompt < 1 or new < 2:
        raise WorkError("the context is too short to be timed", seen=f"{room} tokens")
    return prompt, new


def main() -> None:
    """Measure one variant."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("variant", type=Path)
    made.add_argument("reference", type=Path)
    made.add_argument("--context", type=int, required=True)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--tokens-only", action="store_true", help="nothing but the greedy tokens")
    given = made.parse_args()
    send_nothing()
    variant = VariantFolder.read(given.variant)
    properties = {THREADS: given.threads, **variant.properties}
    if given.tokens_only:
        found = exactness(Engine(variant.path, properties), given.reference)
    else:
        found = measured(variant, given.reference, properties, given.context)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
