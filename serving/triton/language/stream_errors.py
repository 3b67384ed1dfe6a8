"""What a stream's error text means.

gRPC carries no code inside a stream, so the backend's texts begin with a word for it; the others
are Triton's own.
"""

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.serving.triton.server_index import UNHEALTHY

ID = "[request id: "
HINTS = {"full": "send fewer at a time, or serve on more replicas", "unavailable": None}
EMPTY = "the prompt is empty"
"""What our backend says to a request for nothing."""
DEATH = "the process that serves it died; the next release loads it anew"
NO_MODEL = "unknown model"
NO_SUCH = "there is no such model, or not this version"
NOT_READY = ("is not ready", "is not available", "no available versions", "has no available")
OF_VLLM = "Error generating stream: "
"""How Triton's vLLM backend begins what it says against a request, whatever is at fault."""
ENGINE_DEAD = "EngineCore encountered an issue"
DIED = (ENGINE_DEAD, "Failed to process the request", "stub process", "Stub process")


def error_of(text: str, model: str) -> MillraceError:
    """Return the error that a text of the server stands for.

    Args:
        text: the message, with or without a request's id before it.
        model: what was asked.
    """
    if text.startswith(ID):
        text = text.partition("] ")[2]
    what = f"{model} did not answer"
    word, _, rest = text.partition(": ")
    if word == "invalid":
        return InputError(f"{model} does not take this request", seen=rest)
    if word in HINTS:
        return TransientError(what, seen=rest, hint=HINTS[word])
    if NO_MODEL in text:
        return InputError(NO_SUCH, seen=text)
    if UNHEALTHY in text or any(each in text for each in DIED):
        return died(model, text)
    if any(each in text for each in NOT_READY):
        return TransientError(what, seen=text, hint="promote a version, then run: millrace release")
    if text.startswith(OF_VLLM):
        seen = text.removeprefix(OF_VLLM)
        return InputError(f"{model} does not take this request", seen=seen)
    return WorkError(what, seen=text)


def is_death(error: MillraceError) -> bool:
    """Tell whether an error says that the backend is gone."""
    return error.hint == DEATH


def is_ours(error: MillraceError) -> bool:
    """Tell whether an answer to a request for nothing is that of our own backend."""
    return isinstance(error, InputError) and str(error.seen).startswith(EMPTY)


def died(model: str, seen: str) -> TransientError:
    """Return the error of a request whose backend is gone."""
    return TransientError(
        f"{model} did not answer",
        seen=seen,
        hint=DEATH,
    )
