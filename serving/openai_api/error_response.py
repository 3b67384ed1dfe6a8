"""Errors in OpenAI's format, and how the errors of the language client map to them.

    400 invalid_request_error  the request is wrong; context_length_exceeded names both numbers
    401 authentication_error   no API key, or an unknown one
    404 invalid_request_error  model_not_found
    408, 413                   the body is too slow or too large
    429 rate_limit_error       the key's tokens per minute are used up, with Retry-After
    500 server_error           the fault is here, and the log says which
    503 server_error           the model is unavailable or overloaded, with Retry-After

Only what the backend says about the request itself is passed on. The texts of Triton, gRPC and the
engine may contain paths and host names, and stay in the log.
"""

import re
from dataclasses import fields

from starlette.responses import JSONResponse

from millrace.models.common.errors import InputError, MillraceError, TransientError
from millrace.serving.triton.streams.stream_request import HINTS, Sampling

INVALID = "invalid_request_error"
SERVER = "server_error"
OVERLOADED_SECONDS = 1
UNAVAILABLE_SECONDS = 5

SAMPLING = frozenset(field.name for field in fields(Sampling))
"""Fields that an error of the backend may be about, beside the prompt; its text begins with one."""

NO_TEMPLATE = "the model has no chat template"
_TOKENS = re.compile(r"the prompt has (\d+) tokens, and the model's context, .* is (\d+)$")
_CHARACTERS = re.compile(
    r"the prompt has (\d+) characters, and the model's context, (\d+) tokens, .* (\d+)$"
)


class ApiError(Exception):
    """The error that a request is answered with.

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
        names = ("message", "type", "param", "code")
        return {"error": {name: getattr(self, name) for name in names}}

    def response(self) -> JSONResponse:
        """Return the HTTP response, with the headers that belong to its status."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def translate_error(error: MillraceError, model: str, param: str) -> ApiError:
    """Return the API error for an error of the language client.

    Args:
        error: what was raised.
        model: the name in the request.
        param: the request's field that holds the prompt.
    """
    if isinstance(error, InputError):
        return _translate_input_error(error, model, param)
    if isinstance(error, TransientError):
        if error.hint == HINTS["full"]:
            return overloaded(f"{model} has too much to do: {error.seen}")
        return unavailable(model)
    return ApiError(500, f"{model} failed at this request.", type=SERVER)


def overloaded(message: str) -> ApiError:
    """Return the error of a server or a model that takes no more requests at the moment."""
    return ApiError(503, message, type=SERVER, code="overloaded", retry_after=OVERLOADED_SECONDS)


def unavailable(model: str) -> ApiError:
    """Return the error of a model that does not answer at the moment."""
    return ApiError(
        503,
        f"{model} does not answer now. Try again later.",
        type=SERVER,
        code="model_unavailable",
        retry_after=UNAVAILABLE_SECONDS,
    )


def unknown_model(model: str) -> ApiError:
    """Return the error of a name that no language model has."""
    message = f"The model {model!r} does not exist; GET /v1/models lists those that do."
    return ApiError(404, message, param="model", code="model_not_found")


def is_unknown_model(error: MillraceError) -> bool:
    """Whether the server does not have, or no longer has, the model or version."""
    return isinstance(error, InputError) and error.what.startswith("there is no such model")


def _translate_input_error(error: InputError, model: str, param: str) -> ApiError:
    if is_unknown_model(error):
        return unknown_model(model)
    seen = error.seen or ""
    if match := _TOKENS.search(seen):
        tokens, context = match.groups()
        return _context_exceeded(
            f"This model's maximum context length is {context} tokens, prompt and answer "
            f"together, and the prompt has {tokens} tokens. Shorten the {param}.",
            param,
        )
    if match := _CHARACTERS.search(seen):
        characters, context, most = match.groups()
        return _context_exceeded(
            f"This model's maximum context length is {context} tokens, which takes at most "
            f"{most} characters, and the prompt has {characters}. Shorten the {param}.",
            param,
        )
    if seen.startswith(NO_TEMPLATE):
        message = f"{model} has no chat template. Ask it by /v1/completions, with a prompt."
        return ApiError(400, message, param=param, code="invalid_value")
    name = seen.partition(" is ")[0]
    return ApiError(
        400,
        f"{model} does not take this request: {seen}.",
        param=name if name in SAMPLING else None,
        code="invalid_value",
    )


def _context_exceeded(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")
