"""A Triton Python-based backend for causal language models, by OpenVINO GenAI.

A version's folder holds `openvino_model.xml`, `openvino_tokenizer.xml` and
`openvino_detokenizer.xml` with their weights, `config.json` and, for chats, a template in
`tokenizer_config.json` or `chat_template.jinja`; and `engine.json`, if it is to compute in other
numbers than OpenVINO chooses for this machine. Inputs and outputs have the names of Triton's
vLLM backend. Parameters in `config.pbtxt`:

    max_num_seqs           answers that the engine works on at a time
    cache_size_gib         memory of its cache of keys and values
    enable_prefix_caching  true keeps what prompts begin with alike
    stream_interval        tokens between two pieces of a stream, the first of which goes at once;
                           without it, as many as come in 6 ms for each stream under way, and in
                           0.25 s at most
    max_queue_size         requests that wait at most
    max_model_len          tokens of prompt and answer together; 0 for what the model has
    num_threads            threads of the engine; 0 for all cores
    draft_model            a folder beside the model's files, whose model guesses ahead; a version
                           without that folder is served without guesses. The engine fails with
                           prefix caching then, so that is off, and a seed repeats its answer only
                           while nothing else is in flight
    num_assistant_tokens   how many tokens it guesses

`execute` checks a request, tokenizes it and returns; the engine's thread answers it by the
request's response sender. An error begins with `invalid`, `full` or `unavailable` and has no words
of the engine's, which name the folders it was built in. It runs in a stub process and imports
nothing of Millrace.
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
from lm_chat import template_of  # type: ignore[import-not-found]
from lm_engine import Engine, Limits  # type: ignore[import-not-found]
from lm_metrics import CACHE, RUNNING, WAITING, Metrics  # type: ignore[import-not-found]
from lm_pipeline import opened, own_values  # type: ignore[import-not-found]
from lm_refused import INVALID, Refused  # type: ignore[import-not-found]
from lm_request import (  # type: ignore[import-not-found]
    Bounds,
    asked_of,
    context_of,
    outputs_wanted,
)
from lm_stream import Asked, Part, Stream  # type: ignore[import-not-found]

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SWITCH_SECONDS = 0.001
"""The engine holds Python's lock for a whole step: who waits for it must ask early for its turn."""
WATCH_SECONDS = 0.1
BEAT_SECONDS = 1.0
CLOSE_SECONDS = 8.0
"""Triton gives a server that ends ten."""


class TritonPythonModel:
    """One version of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the engine; an exception here makes Triton refuse the version."""
        sys.setswitchinterval(SWITCH_SECONDS)
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        values = own_values(
            folder, {key: entry["string_value"] for key, entry in config["parameters"].items()}
        )
        sequences = int(values["max_num_seqs"])
        context = context_of(
            (folder / "config.json").read_text(), int(values.get("max_model_len", "0"))
        )
        self.bounds = Bounds(context, sequences)
        self.template = template_of(folder)
        self.interval = int(values["stream_interval"]) if "stream_interval" in values else None
        self.metrics = Metrics({"model": args["model_name"], "version": args["model_version"]})
        try:
            self.engine = Engine(
                partial(opened, folder, values),
                Limits(sequences, int(values["max_queue_size"]), guesses_of(values)),
                self.metrics,
                pb_utils.Logger.log_error,
            )
        except RuntimeError as error:
            pb_utils.Logger.log_error(f"the engine refused {folder}: {error}")
            raise pb_utils.TritonModelException(
                "OpenVINO GenAI cannot open the model; Triton's log says why"
            ) from None
        self.closed = threading.Event()
        self.watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.watcher.start()

    def execute(self, requests: Sequence[Any]) -> None:
        """Put the requests into the queue, and refuse those that cannot be answered."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                with self.engine.arrivals.reading():
                    self._take(request, sender)
            except Refused as refused:
                sender.send(error_of(refused), FINAL)
            except Exception as error:  # else the client would wait for ever
                pb_utils.Logger.log_error(f"a request could not be read: {error!r}")
                text = "the request could not be read; see Triton's log"
                sender.send(error_of(Refused("unavailable", text)), FINAL)

    def finalize(self) -> None:
        """Let streams end, and hand over what was counted."""
        self.engine.close(CLOSE_SECONDS)
        self.closed.set()
        self.watcher.join()
        self.metrics.close()

    def _take(self, request: Any, sender: Any) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        asked = asked_of(inputs, self.engine.tokenizer, self.template, self.bounds)
        listener = Listener(sender, outputs_wanted(inputs), asked)
        self.engine.put(Stream(asked, listener, self.interval))

    def _watch(self) -> None:
        """Look for clients that gave up, and hand over the metrics, until all is done."""
        while not self.closed.wait(WATCH_SECONDS):
            self._look()
        self._look()

    def _look(self) -> None:
        streams = self.engine.open_streams()
        self.engine.give_up([each for each in streams if each.listener.is_cancelled()])
        self.metrics.flush(
            {
                RUNNING: self.engine.running,
                WAITING: self.engine.waiting,
                CACHE: self.engine.cache_usage,
            }
        )


class Listener:
    """Who waits for the answer of one request.

    Triton frees what a sender stands on with its last response: asking it afterwards, or just then,
    whether the request is cancelled would end the server. So no two calls are made at a time.

    Args:
        sender: the request's response sender.
        wanted: outputs to send beside the text.
        asked: what it asks for.
    """

    def __init__(self, sender: Any, wanted: set[str], asked: Asked) -> None:
        self._sender, self._wanted, self._asked = sender, wanted, asked
        self._lock = threading.Lock()
        self._is_closed = False
        self._sent_at = time.monotonic()

    def send(self, what: Part | Refused) -> bool:
        """Send a part or an error; false when nobody takes it any more."""
        is_error = isinstance(what, Refused)
        is_last = is_error or what.is_last
        answer = error_of(what) if is_error else response(what, self._wanted, self._asked)
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed, self._sent_at = is_last, time.monotonic()
            try:
                self._sender.send(answer, FINAL if is_last else 0)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"a response could not be sent: {error}")
                return False
        return True

    def is_cancelled(self) -> bool:
        """Ask whether the client gave up."""
        with self._lock:
            return not self._is_closed and bool(self._sender.is_cancelled())

    def beat(self) -> None:
        """Send a stream a part with nothing in it, if it has had none for long.

        A request whose process died is never answered by Triton; its client hears it by silence.
        """
        if self._asked.stream and time.monotonic() - self._sent_at > BEAT_SECONDS:
            nothing = ("",) * self._asked.sampling.n
            self.send(Part(nothing, nothing, (0,) * len(nothing), is_last=False))


def guesses_of(values: Mapping[str, str]) -> int | None:
    """Return how many tokens a draft model guesses ahead, None without one."""
    return int(values["num_assistant_tokens"]) if values.get("draft_model") else None


def response(part: Part, wanted: set[str], asked: Asked) -> Any:
    """Return a part as Triton's response."""
    arrays = {
        "finish_reason": strings(part.reasons),
        "num_input_tokens": np.array([asked.input_tokens], np.uint32),
        "num_output_tokens": np.array(part.output_tokens, np.uint32),
    }
    tensors = [pb_utils.Tensor("text_output", strings(part.texts))]
    tensors += [pb_utils.Tensor(name, arrays[name]) for name in arrays if name in wanted]
    return pb_utils.InferenceResponse(tensors)


def strings(texts: Sequence[str]) -> Any:
    """Return texts as an array of bytes."""
    return np.array([text.encode() for text in texts], dtype=object)


def error_of(refused: Refused) -> Any:
    """Return an error as Triton's response."""
    kind = pb_utils.TritonError
    code = kind.INVALID_ARG if refused.kind == INVALID else kind.UNAVAILABLE
    return pb_utils.InferenceResponse(error=kind(str(refused), code))
