"""`python -m millrace.export.language.text_loss VARIANT`: loss on texts or token pieces.

Texts are a JSON list on stdin and split by the variant's own tokenizer, so that variants with
different tokens can be compared by one text; pieces are a file. It prints `{"loss": nats, "tokens":
count}` over all of them.
"""

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path

import numpy as np

from millrace.export.language.fidelity import LogitsOf, log_softmax, parts, plain_inference
from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.vllm.vllm_engine import VllmEngine
from millrace.models.common.arrays import Array
from millrace.models.common.quiet import disable_openvino_telemetry
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.language_engine import engine_of

WHAT = "its measurement"
Piece = tuple[Array, Array]
"""Tokens `[n]`, and which of them count but for the first, bool `[n - 1]`."""


@dataclass(frozen=True)
class TextLoss:
    """What a variant makes of some texts.

    Attributes:
        loss: negative log-likelihood, summed, in nats.
        tokens: of its own that it is summed over.
    """

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """By token."""
        return exp(self.loss / max(self.tokens, 1))


def text_loss(
    variant: Path,
    texts: Sequence[str],
    context: int,
    limits: Limits,
    vllm_python: Path | None = None,
) -> TextLoss:
    """Measure a variant by texts, in a process of its own.

    Args:
        variant: the folder.
        texts: documents.
        context: tokens that it sees at a time.
        limits: what the process may take.
        vllm_python: the Python of an environment that has vLLM; None for this one.

    Raises:
        WorkError: it cannot be opened, or takes more than the limits.
        TransientError: it was killed.
    """
    given = json.dumps(list(texts)).encode()
    return _run_program([variant, "--context", str(context)], limits, vllm_python, given)


def pieces_loss(
    variant: Path, pieces: TokenPieces, limits: Limits, vllm_python: Path | None = None
) -> TextLoss:
    """Measure a variant by the tokens that count in pieces, in a process of its own.

    Args:
        variant: the folder.
        pieces: none longer than the context.
        limits: what the process may take.
        vllm_python: the Python of an environment that has vLLM; None for this one.

    Raises:
        WorkError: it cannot be opened, or takes more than the limits.
        TransientError: it was killed.
    """
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        pieces.write(Path(file.name))
        return _run_program([variant, "--pieces", file.name], limits, vllm_python)


def _run_program(
    words: list[str | Path], limits: Limits, vllm_python: Path | None, stdin: bytes = b""
) -> TextLoss:
    is_vllm = engine_of(file.name for file in Path(words[0]).iterdir()) == "vllm"
    output = run_in_subprocess(
        "millrace.export.language.text_loss",
        words,
        limits,
        what=WHAT,
        stdin=stdin,
        python=vllm_python if is_vllm else None,
    )
    return TextLoss(**json.loads(output.splitlines()[-1]))


def summed(pieces: Iterable[Piece], logits_of: LogitsOf) -> TextLoss:
    """Return the loss over all tokens that count."""
    loss, tokens = 0.0, 0
    for ids, counted in pieces:
        logits, labels = logits_of(ids)[:-1][counted], ids[1:][counted]
        for part in parts(*logits.shape):
            logs = log_softmax(logits[part])
            loss -= float(np.take_along_axis(logs, labels[part, None], axis=1).sum())
        tokens += len(labels)
    return TextLoss(loss, tokens)


def pieces_of(texts: Iterable[str], variant: Path, context: int) -> Iterator[Piece]:
    """Yield the tokens of texts, cut to the context, of two tokens or more; all count."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(variant, local_files_only=True, trust_remote_code=False)
    for text in texts:
        ids = np.asarray(words(text, add_special_tokens=False).input_ids, np.int64)
        cuts = (ids[at : at + context] for at in range(0, len(ids), context))
        yield from ((cut, np.ones(len(cut) - 1, bool)) for cut in cuts if len(cut) > 1)


def logits_of(variant: VariantFolder) -> LogitsOf:
    """Return what answers pieces with a variant."""
    if variant.engine == "vllm":
        return VllmEngine(variant.path).logits_of
    disable_openvino_telemetry()
    import openvino

    return plain_inference(openvino.Core().compile_model(variant.ir, "CPU", variant.properties))


def main() -> None:
    """Measure one variant."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("variant", type=Path)
    of = made.add_mutually_exclusive_group(required=True)
    of.add_argument("--context", type=int, help="tokens that it sees at a time, of texts on stdin")
    of.add_argument("--pieces", type=Path, help="an npz")
    given = made.parse_args()
    variant = VariantFolder.read(given.variant)
    if given.pieces:
        pieces = TokenPieces.read(given.pieces).pieces()
    else:
        texts = json.loads(sys.stdin.buffer.read())
        pieces = pieces_of(texts, variant.path, given.context)
    found = summed(pieces, logits_of(variant))
    sys.stdout.write(json.dumps(vars(found)) + "\n")


if __name__ == "__main__":
    main()
