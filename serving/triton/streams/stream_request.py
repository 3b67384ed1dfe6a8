"""Requests to a model that streams text over Triton's gRPC, and the responses and errors.

gRPC has no error codes inside a stream, so the error texts of Millrace's backend begin with a word
for the kind of error. All other error texts are Triton's own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.serving.triton.server_index import UNHEALTHY

Messages = Sequence[Mapping[str, str]]
FINAL = "triton_final_response"
UNFINISHED = ("", "None")
"""The finish reasons of an answer that has not ended; vLLM sends "None"."""


@dataclass(frozen=True)
class Sampling:
    """How an answer is generated. None: the server uses its default.

    Attributes:
        temperature: the sampling temperature; 0 always chooses the likeliest token.
        top_p: choose among the likeliest tokens whose probabilities sum up to this, in (0, 1].
        top_k: choose among this number of the likeliest tokens.
        repetition_penalty: above 1 makes the tokens of prompt and answer less likely.
        presence_penalty: from -2 to 2; `openvino_genai` accepts only 0.
        frequency_penalty: from -2 to 2; `openvino_genai` accepts only 0.
        seed: equal seeds give equal answers.
        stop: texts that end an answer; the answer does not include them.
        max_tokens: the largest number of tokens in one answer.
        min_tokens: the smallest number of tokens in one answer.
        n: the number of answers to the prompt.
        ignore_eos: continue after an end-of-text token.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    ignore_eos: bool | None = None

    def as_json(self) -> str:
        """Return the values that are not None, as JSON."""
        return json.dumps({key: value for key, value in asdict(self).items() if value is not None})


@dataclass(frozen=True)
class Piece:
    """The content of one streamed response; each tuple has one element for each answer.

    Attributes:
        texts: the new text.
        finish_reasons: why the answer ended: stop, length or cancelled; "" while it continues.
        input_tokens: the number of tokens of the prompt.
        output_tokens: the number of new tokens since the previous piece.
        is_last: whether this is the last piece.
    """

    texts: tuple[str, ...]
    finish_reasons: tuple[str, ...]
    input_tokens: int
    output_tokens: tuple[int, ...]
    is_last: bool


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Return all pieces of the answers to a prompt, joined to one piece."""
    reasons = zip(*(piece.finish_reasons for piece in pieces), strict=True)
    return Piece(
        texts=tuple(map("".join, zip(*(piece.texts for piece in pieces), strict=True))),
        finish_reasons=tuple(next(filter(None, each), "") for each in reasons),
        input_tokens=pieces[0].input_tokens,
        output_tokens=tuple(map(sum, zip(*(p.output_tokens for p in pieces), strict=True))),
        is_last=pieces[-1].is_last,
    )


def build_request(
    model: str,
    prompt: str | Messages,
    sampling: Sampling | str,
    *,
    version: int | None,
    request_id: str = "",
) -> pb.ModelInferRequest:
    """Return a request for a streamed answer.

    Args:
        model: the model's name.
        prompt: a text to continue, or the messages of a chat.
        sampling: how the answer is generated; a string is sent unchanged as JSON.
        version: the model's version; None: the live version.
        request_id: the id of the request in Triton's log.
    """
    request = pb.ModelInferRequest(
        model_name=model, model_version="" if version is None else str(version), id=request_id
    )
    name, text = "text_input", prompt
    if not isinstance(prompt, str):
        name, text = "messages", json.dumps([dict(message) for message in prompt])
    parameters = sampling if isinstance(sampling, str) else sampling.as_json()
    _add(request, name, "BYTES", text)
    _add(request, "sampling_parameters", "BYTES", parameters)
    _add(request, "stream", "BOOL", True)
    for flag in ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens"):
        _add(request, flag, "BOOL", True)
    return request


def _add(request: pb.ModelInferRequest, name: str, datatype: str, value: Any) -> None:
    request.inputs.add(name=name, datatype=datatype, shape=[1])
    if datatype == "BOOL":
        raw = np.array([value]).tobytes()
    else:
        text = np.array([value.encode("utf-8", "surrogatepass")], dtype=object)
        raw = serialize_byte_tensor(text).item()
    request.raw_input_contents.append(raw)


def parse_piece(response: pb.ModelInferResponse) -> Piece | None:
    """Return the piece in a response; None if it only marks the end of the stream."""
    if not response.outputs:
        return None
    raw = dict(zip((o.name for o in response.outputs), response.raw_output_contents, strict=True))
    return Piece(
        texts=_texts(raw["text_output"]),
        finish_reasons=tuple("" if w in UNFINISHED else w for w in _texts(raw["finish_reason"])),
        input_tokens=int(np.frombuffer(raw["num_input_tokens"], np.uint32)[0]),
        output_tokens=tuple(np.frombuffer(raw["num_output_tokens"], np.uint32).tolist()),
        is_last=_is_final(response),
    )


def is_last(response: pb.ModelStreamInferResponse) -> bool:
    """Whether a response is the last one of its request. Every error is."""
    return bool(response.error_message) or _is_final(response.infer_response)


def _is_final(response: pb.ModelInferResponse) -> bool:
    return bool(response.parameters[FINAL].bool_param)


def _texts(raw: bytes) -> tuple[str, ...]:
    return tuple(item.decode() for item in deserialize_bytes_tensor(raw))


REQUEST_ID = "[request id: "
HINTS = {"full": "send fewer requests at a time, or add replicas", "unavailable": None}
EMPTY_PROMPT = "the prompt is empty"
"""Beginning of the error with which Millrace's backend answers a health check."""
PROCESS_DIED = (
    "the model's process in Triton died; the next release loads the model again; to start one now, "
    "run: millrace release"
)
UNKNOWN_MODEL = "unknown model"
NO_SUCH_MODEL = "there is no such model or version"
NOT_READY = ("is not ready", "is not available", "no available versions", "has no available")
VLLM_PREFIX = "Error generating stream: "
"""The prefix of every error text of Triton's vLLM backend."""
DEAD_ENGINE = "EngineCore encountered an issue"
DEATH_SIGNS = (DEAD_ENGINE, "Failed to process the request", "stub process", "Stub process")


def parse_error(text: str, model: str) -> MillraceError:
    """Return the Millrace error for an error text of the server.

    Args:
        text: the error text, with or without a request id in front.
        model: the model's name in the request.
    """
    if text.startswith(REQUEST_ID):
        text = text.partition("] ")[2]
    what = f"{model} did not answer"
    word, _, rest = text.partition(": ")
    if word == "invalid":
        return InputError(f"{model} rejects this request", seen=rest)
    if word in HINTS:
        return TransientError(what, seen=rest, hint=HINTS[word])
    if UNKNOWN_MODEL in text:
        return InputError(NO_SUCH_MODEL, seen=text)
    if UNHEALTHY in text or any(each in text for each in DEATH_SIGNS):
        return death_error(model, text)
    if any(each in text for each in NOT_READY):
        return TransientError(what, seen=text, hint="promote a version, then run: millrace release")
    if text.startswith(VLLM_PREFIX):
        seen = text.removeprefix(VLLM_PREFIX)
        return InputError(f"{model} rejects this request", seen=seen)
    return WorkError(what, seen=text)


def is_death(error: MillraceError) -> bool:
    """Whether an error means that the backend's process died."""
    return error.hint == PROCESS_DIED


def is_from_own_backend(error: MillraceError) -> bool:
    """Whether the error of a health check comes from Millrace's own backend."""
    return isinstance(error, InputError) and str(error.seen).startswith(EMPTY_PROMPT)


def death_error(model: str, seen: str) -> TransientError:
    """Return the error for a request whose backend process died."""
    return TransientError(f"{model} did not answer", seen=seen, hint=PROCESS_DIED)
