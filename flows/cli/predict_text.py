"""One text, continued by the language model that is live."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from millrace.models.common.errors import InputError
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.models.registry.version_files import LanguagePackage
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language.stream_request import Piece, Sampling, join_pieces


@dataclass(frozen=True)
class LiveText:
    """How the live language model went on.

    Attributes:
        model: the model.
        version: the version that answered.
        endpoint: the server.
        prompt: the text that was given.
        text: how it goes on.
        finish_reason: why it ends there: stop or length.
        input_tokens: of the prompt.
        output_tokens: of the answer.
        first_token_ms: from the request to the first piece, milliseconds.
        milliseconds: of the whole.
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


def predict_text(
    client: TritonClient, package: LanguagePackage, text: str | None, say: Callable[[str], None]
) -> LiveText:
    """Let a loaded version go on with a text, greedily.

    Args:
        client: the server.
        package: the version that is live there.
        text: the text; `-` for stdin, None for a prompt it was certified with.
        say: takes the pieces of the answer as they come.

    Raises:
        InputError: the text is too long, or empty.
        TransientError: Triton cannot be reached, or is too busy.
    """
    model, version = package.version.model, package.version.version
    prompt = _prompt(package, text)
    pieces: list[Piece] = []
    began = time.perf_counter()
    first = 0.0
    sampling = Sampling(temperature=0, max_tokens=MAX_TOKENS)
    for piece in client.streams.generate(model, prompt, sampling, version=version):
        first = first or time.perf_counter() - began
        say(piece.texts[0])
        pieces.append(piece)
    seconds = time.perf_counter() - began
    whole = join_pieces(pieces)
    return LiveText(
        *(model, version, client.endpoint.grpc, prompt, whole.texts[0]),
        *(whole.finish_reasons[0], whole.input_tokens, whole.output_tokens[0]),
        *(first * 1000, seconds * 1000),
    )


def _prompt(package: LanguagePackage, text: str | None) -> str:
    if text is None:
        return str(package.golden()["prompts"][0])
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except ValueError as error:
        raise InputError("the text on stdin cannot be read", seen=error, valid="UTF-8") from error
