"""Errors in OpenAI's form, and which of ours stands for which.

    400 invalid_request_error  the request is wrong; context_length_exceeded names both numbers
    401 authentication_error   no key, or not one of ours
    404 invalid_request_error  model_not_found
    408, 413                   the body is too slow or too large
    429 rate_limit_error       the key's tokens per minute are used up, with Retry-After
    500 server_error           the fault is here, and the log says which
    503 server_error           the model is away or has too much to do, with Retry-After

Only what the backend says of the request itself is passed on. What Triton, gRPC or the engine say
may name paths and hosts, and stays in the log.
"""

import re
from dataclasses import fields

from millrace.models.common.errors import InputError, MillraceError, TransientError
from millrace.serving.triton.language.stream_request import HINTS, Sampling

INVALID = "invalid_request_error"
SERVER = "server_error"
BUSY_SECONDS = 1
AWAY_SECONDS = 5

SAMPLING = frozenset(field.name for field in fields(Sampling))
"""What an error of the backend may be about, beside the prompt; it names it first."""

NO_TEMPLATE = "the model has no chat template"
_TOKENS = re.compile(r"the prompt has (\d+) tokens, and the model's context, .* is (\d+)$")
_CHARACTERS = re.compile(
    r"the prompt has (\d+) characters, and the model's context, (\d+) tokens, .* (\d+)$"
)


class Refusal(Exception):
    """A request is answered by an error.

    Args:
        status: HTTP status.
        message: for the client's user.
        type: OpenAI's kind of error.
        param: the request's field that is wrong.
        code: the error in one word.
        retry_after: whole seconds after which to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.param, self.code, self.retry_after = param, code, retry_after

    def body(self) -> dict[str, object]:
        """Return the answer's JSON."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the status."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def refusal_of(error: MillraceError, model: str, param: str) -> Refusal:
    """Return the answer that an error of the language client stands for.

    Args:
        error: what was raised.
        model: what was asked.
        param: the request's field that holds the prompt.
    """
    if isinstance(error, InputError):
        return _input(error, model, param)
    if isinstance(error, TransientError):
        if error.hint == HINTS["full"]:
            return busy(f"{model} has too much to do: {error.seen}")
        return away(model)
    return Refusal(500, f"{model} failed at this request.", type=SERVER)


def busy(message: str) -> Refusal:
    """Return the refusal of more work than is taken on at a time."""
    return Refusal(503, message, type=SERVER, code="overloaded", retry_after=BUSY_SECONDS)


def away(model: str) -> Refusal:
    """Return the refusal of a model that does not answer now, and may again."""
    return Refusal(
        503,
        f"{model} does not answer now. Try again later.",
        type=SERVER,
        code="model_unavailable",
        retry_after=AWAY_SECONDS,
    )


def no_model(model: str) -> Refusal:
    """Return the refusal of a name that no language model has."""
    message = f"The model {model!r} does not exist; GET /v1/models lists those that do."
    return Refusal(404, message, param="model", code="model_not_found")


def is_no_model(error: MillraceError) -> bool:
    """Tell whether the server has not, or has no longer, the model or version."""
    return isinstance(error, InputError) and error.what.startswith("there is no such model")


def _input(error: InputError, model: str, param: str) -> Refusal:
    if is_no_model(error):
        return no_model(model)
    said = error.seen or ""
    if found := _TOKENS.search(said):
        tokens, context = found.groups()
        return _too_long(
            f"This model's maximum context length is {context} tokens, prompt and answer "
            f"together, and the prompt has {tokens} tokens. Shorten the {param}.",
            param,
        )
    if found := _CHARACTERS.search(said):
        characters, context, most = found.groups()
        return _too_long(
            f"This model's maximum context length is {context} tokens, which takes at most "
            f"{most} characters, and the prompt has {characters}. Shorten the {param}.",
            param,
        )
    if said.startswith(NO_TEMPLATE):
        message = f"{model} has no chat template. Ask it by /v1/completions, with a prompt."
        return Refusal(400, message, param=param, code="invalid_value")
    named = said.partition(" is ")[0]
    return Refusal(
        400,
        f"{model} does not take this request: {said}.",
        param=named if named in SAMPLING else None,
        code="invalid_value",
    )


def _too_long(message: str, param: str) -> Refusal:
    return Refusal(400, message, param=param, code="context_length_exceeded")
