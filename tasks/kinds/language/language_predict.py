"""Lets the live language model continue one text."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.models.common.errors import InputError
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.models.registry.version_files import Package
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.streams.stream_request import Piece, Sampling, join_pieces
from millrace.tasks.kinds.language.language_files import LanguageFiles, language_files
from millrace.tasks.kinds.steps import Question, Table


@dataclass(frozen=True)
class LiveText:
    """The live language model's continuation of a text; an `Answer`.

    Attributes:
        model: the model.
        version: the version that answered.
        endpoint: the address of the server.
        prompt: the text to continue.
        text: the continuation.
        finish_reason: why the continuation ended: `stop` or `length`.
        input_tokens: the number of tokens in the prompt.
        output_tokens: the number of tokens in the answer.
        first_token_ms: the time from the request to the first chunk of text, in milliseconds.
        milliseconds: the time of the whole request.
    """

    model: str
    version: int
    endpoint: str
    prompt: str
    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    first_token_ms: float
    milliseconds: float

    @property
    def title(self) -> str:
        """The version and the server that answered."""
        return f"{self.model} version {self.version} at {self.endpoint}"

    def table(self) -> Table:
        """Return only the statistics, because the text was printed while it was streamed."""
        rate = self.output_tokens / (self.milliseconds / 1000)
        said = (
            f"{self.input_tokens} tokens in, {self.output_tokens} out ({self.finish_reason}); "
            f"first after {self.first_token_ms:.1f} ms, {rate:,.0f} tokens/s"
        )
        return Table((), (), ((self.title, said),))


def predict_text(client: TritonClient, package: Package, question: Question) -> LiveText:
    """Let a loaded version continue a text, greedily.

    Raises:
        InputError: the question has rows, or the text is too long or empty.
        TransientError: Triton cannot be reached, or is too busy.
    """
    files = language_files(package)
    model, version = files.version.model, files.version.version
    if question.rows is not None:
        raise InputError(
            f"{model} continues a text, and does not accept rows",
            seen=question.rows,
            valid="a text to continue: --text TEXT, or --text - for stdin",
        )
    prompt = _prompt(files, question.text)
    pieces: list[Piece] = []
    began = time.perf_counter()
    first = 0.0
    sampling = Sampling(temperature=0, max_tokens=MAX_TOKENS)
    for piece in client.streams.generate(model, prompt, sampling, version=version):
        first = first or time.perf_counter() - began
        question.say(piece.texts[0])
        pieces.append(piece)
    seconds = time.perf_counter() - began
    whole = join_pieces(pieces)
    return LiveText(
        *(model, version, client.endpoint.grpc, prompt, whole.texts[0]),
        *(whole.finish_reasons[0], whole.input_tokens, whole.output_tokens[0]),
        *(first * 1000, seconds * 1000),
    )


def golden_texts(package: Package) -> Mapping[str, Any]:
    """Return the golden prompts and their answers, as texts to make prompts of."""
    golden = language_files(package).golden()
    pairs = zip(golden["prompts"], golden["answers"], strict=True)
    texts = [f"{prompt}{answer}" for prompt, answer in pairs]
    return {"text_input": np.array(texts, dtype=object)}


def _prompt(files: LanguageFiles, text: str | None) -> str:
    if text is None:
        return str(files.golden()["prompts"][0])
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except ValueError as error:
        raise InputError("the text on stdin cannot be read", seen=error, valid="UTF-8") from error
