"""Errors in OpenAI's format, and how the errors of the language client map to them.

    400 invalid_request_error  the request is wrong; the message of context_length_exceeded has the
                               sizes of the prompt and of the context
    401 authentication_error   no API key, or an unknown one
    404 invalid_request_error  model_not_found
    408, 413                   the body is too slow or too large
    429 rate_limit_error       the key's tokens per minute are used up, with Retry-After
    500 server_error           this server failed; its log has the details
    503 server_error           the model is unavailable or overloaded, with Retry-After

Only the backend's messages about the request itself reach the client. The messages of Triton, gRPC
and the engine may contain paths and host names, so they appear only in the log.
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
"""Sampling fields of a request. An error message of the backend may begin with such a name."""

NO_TEMPLATE = "the model has no chat template"
_TOKENS = re.compile(r"the prompt has (\d+) tokens, and the model's context, .* is (\d+)$")
_CHARACTERS = re.compile(
    r"the prompt has (\d+) characters, and the model's context, (\d+) tokens, .* (\d+)$"
)


class ApiError(Exception):
    """The error that a request is answered with.

    Args:
        status: HTTP status.
        message: the explanation for the client's user.
        type: OpenAI's error type.
        param: the name of the wrong field in the request.
        code: OpenAI's error code, such as `model_not_found`.
        retry_after: whole seconds to wait before another try.
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
        """Return the JSON body of the response."""
        names = ("message", "type", "param", "code")
        return {"error": {name: getattr(self, name) for name in names}}

    def response(self) -> JSONResponse:
        """Return the HTTP response, with the headers that its status requires."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def translate_error(error: MillraceError, model: str, param: str) -> ApiError:
    """Return the API error that corresponds to an error of the language client.

    Args:
        error: the error of the language client.
        model: the name in the request.
        param: the request's field that holds the prompt.
    """
    if isinstance(error, InputError):
        return _translate_input_error(error, model, param)
    if isinstance(error, TransientError):
        if error.hint == HINTS["full"]:
            return overloaded(f"{model} is overloaded: {error.seen}")
        return unavailable(model)
    return ApiError(500, f"{model} failed to answer this request.", type=SERVER)


def overloaded(message: str) -> ApiError:
    """Return the error of a server or a model that accepts no more requests at the moment."""
    return ApiError(503, message, type=SERVER, code="overloaded", retry_after=OVERLOADED_SECONDS)


def unavailable(model: str) -> ApiError:
    """Return the error of a model that does not answer at the moment."""
    return ApiError(
        503,
        f"{model} does not answer at the moment. Try again later.",
        type=SERVER,
        code="model_unavailable",
        retry_after=UNAVAILABLE_SECONDS,
    )


def unknown_model(model: str) -> ApiError:
    """Return the error for a name that no language model has."""
    message = f"The model {model!r} does not exist; GET /v1/models lists the existing models."
    return ApiError(404, message, param="model", code="model_not_found")


def is_unknown_model(error: MillraceError) -> bool:
    """Whether the error says that Triton does not have the model or version, or not any more."""
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
            f"This model's maximum context length is {context} tokens, which is at most "
            f"{most} characters, and the prompt has {characters} characters. Shorten the {param}.",
            param,
        )
    if seen.startswith(NO_TEMPLATE):
        message = f"{model} has no chat template. Send a prompt to /v1/completions instead."
        return ApiError(400, message, param=param, code="invalid_value")
    name = seen.partition(" is ")[0]
    return ApiError(
        400,
        f"{model} rejects this request: {seen}.",
        param=name if name in SAMPLING else None,
        code="invalid_value",
    )


def _context_exceeded(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")
