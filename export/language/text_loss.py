"""Measure a variant's loss on text: `python -m millrace.export.language.text_loss VARIANT`.

The text is either a JSON list on stdin or a file of token sequences (`TokenPieces`). Texts on stdin
are tokenized by the variant's own tokenizer, so variants with different tokenizers can be compared.
The program prints `{"loss": nats, "tokens": count, "by_text": [[nats, count], …]}`.
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

WHAT = "the measurement of a language model's loss on text"
Piece = tuple[Array, Array]
"""Tokens `[n]`, and their loss mask without the first token, bool `[n - 1]`."""


@dataclass(frozen=True)
class TextLoss:
    """The loss of a variant on some texts.

    Attributes:
        loss: summed negative log-likelihood, in nats.
        tokens: number of tokens in the sum, from the variant's own tokenizer.
        by_text: loss and tokens of each text, where texts were given.
    """

    loss: float
    tokens: int
    by_text: tuple[tuple[float, int], ...] = ()

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return exp(self.loss / max(self.tokens, 1))


def text_loss(
    variant: Path,
    texts: Sequence[str],
    context: int,
    limits: Limits,
    vllm_python: Path | None = None,
) -> TextLoss:
    """Return a variant's loss on texts, measured in a subprocess.

    Args:
        variant: folder of the variant.
        texts: documents.
        context: the model's context length in tokens.
        limits: time and memory limits of the subprocess.
        vllm_python: Python interpreter that has vLLM; None for the current interpreter.

    Raises:
        WorkError: the variant cannot be loaded, or the measurement exceeded the limits.
        TransientError: the subprocess was killed.
    """
    given = json.dumps(list(texts)).encode()
    return _run_program([variant, "--context", str(context)], limits, vllm_python, given)


def pieces_loss(
    variant: Path, pieces: TokenPieces, limits: Limits, vllm_python: Path | None = None
) -> TextLoss:
    """Return a variant's loss on token sequences, measured in a subprocess.

    Args:
        variant: folder of the variant.
        pieces: token sequences, none longer than the context.
        limits: time and memory limits of the subprocess.
        vllm_python: Python interpreter that has vLLM; None for the current interpreter.

    Raises:
        WorkError: the variant cannot be loaded, or the measurement exceeded the limits.
        TransientError: the subprocess was killed.
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
    found = json.loads(output.splitlines()[-1])
    by_text = tuple((loss, tokens) for loss, tokens in found["by_text"])
    return TextLoss(found["loss"], found["tokens"], by_text)


def summed(pieces: Iterable[Piece], logits_of: LogitsOf) -> TextLoss:
    """Return the loss over all tokens that count in the loss mask."""
    loss, tokens = 0.0, 0
    for ids, counted in pieces:
        logits, labels = logits_of(ids)[:-1][counted], ids[1:][counted]
        for part in parts(*logits.shape):
            logs = log_softmax(logits[part])
            loss -= float(np.take_along_axis(logs, labels[part, None], axis=1).sum())
        tokens += len(labels)
    return TextLoss(loss, tokens)


def summed_by_text(texts: Iterable[Iterable[Piece]], logits_of: LogitsOf) -> TextLoss:
    """Return the loss over all tokens of texts, and that of each text."""
    each = [summed(pieces, logits_of) for pieces in texts]
    return TextLoss(
        sum(text.loss for text in each),
        sum(text.tokens for text in each),
        tuple((text.loss, text.tokens) for text in each),
    )


def pieces_by_text(texts: Iterable[str], variant: Path, context: int) -> Iterator[Iterator[Piece]]:
    """Yield each text as chunks of 2 to `context` tokens, in which all tokens count."""
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(variant, local_files_only=True, trust_remote_code=False)
    for text in texts:
        ids = np.asarray(words(text, add_special_tokens=False).input_ids, np.int64)
        cuts = [ids[at : at + context] for at in range(0, len(ids), context)]
        yield ((cut, np.ones(len(cut) - 1, bool)) for cut in cuts if len(cut) > 1)


def logits_of(variant: VariantFolder) -> LogitsOf:
    """Load a variant, and return its function from tokens to logits."""
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
    of.add_argument("--context", type=int, help="context length in tokens, for texts on stdin")
    of.add_argument("--pieces", type=Path, help="npz file of token sequences")
    given = made.parse_args()
    variant = VariantFolder.read(given.variant)
    if given.pieces:
        found = summed(TokenPieces.read(given.pieces).pieces(), logits_of(variant))
    else:
        texts = json.loads(sys.stdin.buffer.read())
        found = summed_by_text(
            pieces_by_text(texts, variant.path, given.context), logits_of(variant)
        )
    sys.stdout.write(json.dumps(vars(found)) + "\n")


if __name__ == "__main__":
    main()
