"""A Python-based Triton backend for causal language models that uses OpenVINO GenAI.

A version's folder has `openvino_model.xml`, `openvino_tokenizer.xml` and
`openvino_detokenizer.xml` with their weights, and `config.json`. For chats it has a template in
`tokenizer_config.json` or `chat_template.jinja`. It has `engine.json` if the precision is not the
one that OpenVINO chooses for this machine. Inputs and outputs have the names of Triton's vLLM
backend. Parameters in `config.pbtxt`:

    max_num_seqs           the largest number of answers that the engine generates at a time
    cache_size_gib         memory of the engine's KV cache
    enable_prefix_caching  true reuses the KV cache of prompts with the same beginning
    stream_interval        tokens between two responses of a stream; the first response is sent at
                           once. Without this parameter, the pause between two responses is 6 ms
                           for each open stream, at most 0.25 s
    max_queue_size         the largest number of requests that wait
    max_model_len          the largest number of tokens of prompt and answer together; 0: the
                           model's context
    num_threads            threads of the engine; 0: all cores
    draft_model            the name of a folder with a draft model, in the version's folder. A
                           version without this folder is served without a draft. The engine fails
                           with both a draft and prefix caching, so a draft turns prefix caching
                           off. With a draft, a seed repeats its answer only while no other request
                           is in flight
    num_assistant_tokens   tokens that the draft model proposes at a time

`execute` checks a request, tokenizes it and returns. The engine's thread answers by the request's
response sender. The text of an error begins with `invalid`, `full` or `unavailable`. It never
contains the engine's own messages, because they name the folders that the engine was built in. The
backend runs in a stub process and imports nothing of Millrace.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from language_generation import chat_template_of  # type: ignore[import-not-found]
from lm_engine import Engine, Limits  # type: ignore[import-not-found]
from lm_errors import INVALID, UNAVAILABLE, RequestError  # type: ignore[import-not-found]
from lm_metrics import CACHE, RUNNING, WAITING, Metrics  # type: ignore[import-not-found]
from lm_pipeline import open_pipeline, version_parameters  # type: ignore[import-not-found]
from lm_request import (  # type: ignore[import-not-found]
    Bounds,
    read_context,
    read_request,
    requested_outputs,
)
from lm_stream import GenerateRequest, Part, Stream  # type: ignore[import-not-found]

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SWITCH_SECONDS = 0.001
"""Python's switch interval: short, because the engine holds the GIL for a whole step."""
WATCH_SECONDS = 0.1
KEEP_ALIVE_SECONDS = 1.0
CLOSE_SECONDS = 8.0
"""Less than the ten seconds that Triton has to shut down (`exit-timeout-secs`)."""


class TritonPythonModel:
    """One version of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the engine; an exception here makes Triton refuse the version."""
        sys.setswitchinterval(SWITCH_SECONDS)
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        parameters = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        values = version_parameters(folder, parameters)
        sequences = int(values["max_num_seqs"])
        guesses = int(values["num_assistant_tokens"]) if values.get("draft_model") else None
        limit = int(values.get("max_model_len", "0"))
        context = read_context((folder / "config.json").read_text(), limit)
        self.bounds = Bounds(context, sequences)
        self.template = chat_template_of(folder)
        self.interval = int(values["stream_interval"]) if "stream_interval" in values else None
        self.metrics = Metrics({"model": args["model_name"], "version": args["model_version"]})
        try:
            self.engine = Engine(
                partial(open_pipeline, folder, values),
                Limits(sequences, int(values["max_queue_size"]), guesses),
                self.metrics.count_finished,
                pb_utils.Logger.log_error,
            )
        except RuntimeError as error:
            pb_utils.Logger.log_error(f"OpenVINO GenAI cannot open {folder}: {error}")
            raise pb_utils.TritonModelException(
                "OpenVINO GenAI cannot open the model; Triton's log has the reason"
            ) from None
        self.closed = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.watcher.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Put the requests into the queue, and answer invalid requests with an error."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                with self.engine.arrivals.reading():
                    self._submit(request, sender)
            except RequestError as error:
                sender.send(error_response(error), FINAL)
            except Exception as error:  # otherwise the client would wait forever
                pb_utils.Logger.log_error(f"a request could not be read: {error!r}")
                text = "the request could not be read; Triton's log has the reason"
                sender.send(error_response(RequestError(UNAVAILABLE, text)), FINAL)

    def finalize(self) -> None:
        """Wait for the open streams, and send the last metrics."""
        self.engine.close(CLOSE_SECONDS)
        self.closed.set()
        self.watcher.join()
        self.metrics.close()

    def _submit(self, triton_request: Any, sender: Any) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in triton_request.inputs()}
        request = read_request(inputs, self.engine.tokenizer, self.template, self.bounds)
        listener = Listener(sender, requested_outputs(inputs), request)
        self.engine.submit(Stream(request, listener, self.interval))

    def _watch(self) -> None:
        """Find cancelled requests and send the metrics, until the model is unloaded."""
        while not self.closed.wait(WATCH_SECONDS):
            self._check_streams()
        self._check_streams()

    def _check_streams(self) -> None:
        streams = self.engine.open_streams()
        self.engine.cancel([each for each in streams if each.listener.is_cancelled()])
        self.metrics.flush(
            {
                RUNNING: self.engine.running,
                WAITING: self.engine.waiting,
                CACHE: self.engine.cache_usage,
            }
        )


class Listener:
    """Sends responses to the client of one request.

    Triton frees the memory of a sender when the last response is sent. A call of `is_cancelled` on
    the sender at that time or later would crash the server. So a lock allows one call at a time,
    and none after the last response.

    Args:
        sender: the request's response sender.
        outputs: names of the outputs to send beside the text.
        request: the client's request.
    """

    def __init__(self, sender: Any, outputs: set[str], request: GenerateRequest) -> None:
        self._sender, self._outputs, self._request = sender, outputs, request
        self._lock = threading.Lock()
        self._is_closed = False
        self._sent_at = time.monotonic()

    def send(self, what: Part | RequestError) -> bool:
        """Send a part or an error; return false if the client no longer listens."""
        if isinstance(what, RequestError):
            response, is_last = error_response(what), True
        else:
            response, is_last = part_response(what, self._outputs, self._request), what.is_last
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed, self._sent_at = is_last, time.monotonic()
            try:
                self._sender.send(response, FINAL if is_last else 0)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"a response could not be sent: {error}")
                return False
        return True

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request."""
        with self._lock:
            return not self._is_closed and bool(self._sender.is_cancelled())

    def keep_alive(self) -> None:
        """Send an empty part if a stream has received nothing for a second.

        Triton never answers a request whose backend process died. So a client that gets no more
        keep-alives knows that the process died.
        """
        if self._request.stream and time.monotonic() - self._sent_at > KEEP_ALIVE_SECONDS:
            nothing = ("",) * self._request.sampling.n
            self.send(Part(nothing, nothing, (0,) * len(nothing), is_last=False))


def part_response(part: Part, outputs: set[str], request: GenerateRequest) -> Any:
    """Return a part as Triton's response."""
    arrays = {
        "finish_reason": encode_texts(part.reasons),
        "num_input_tokens": np.array([request.input_tokens], np.uint32),
        "num_output_tokens": np.array(part.output_tokens, np.uint32),
    }
    tensors = [pb_utils.Tensor("text_output", encode_texts(part.texts))]
    tensors += [pb_utils.Tensor(name, arrays[name]) for name in arrays if name in outputs]
    return pb_utils.InferenceResponse(tensors)


def encode_texts(texts: Sequence[str]) -> Any:
    """Return texts as an array of bytes."""
    return np.array([text.encode() for text in texts], dtype=object)


def error_response(error: RequestError) -> Any:
    """Return an error as Triton's response."""
    kind = pb_utils.TritonError
    code = kind.INVALID_ARG if error.kind == INVALID else kind.UNAVAILABLE
    return pb_utils.InferenceResponse(error=kind(str(error), code))
