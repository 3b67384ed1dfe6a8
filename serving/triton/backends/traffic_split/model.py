"""A Python-based Triton backend that splits a model's requests between two of its versions.

During a rollout the splitter has the model's name. It passes each request on, unchanged, to the
champion or to the candidate, by BLS (Business Logic Scripting). Both versions are loaded under the
name of a helper model, the arms. In a canary, a share of the requests goes to the candidate. In
a shadow, the answer is always the champion's, and the candidate gets the request afterwards.
Parameters in `config.pbtxt`:

    arms              the model that has both versions loaded
    champion          the version that serves now
    candidate         the version on trial
    kind              canary or shadow
    weight_percent    percent of the requests that the candidate answers in a canary
    compare_percent   percent of the candidate's requests that the champion answers too
    sticky_key        the request parameter whose value decides which version answers
    tolerance         relative difference up to which two numbers agree
    timeout_s         seconds without an answer after which the candidate has failed a request
    goal_ms           milliseconds after which an answer is late; inf if none is
    began             when this step of the rollout began; a label of all counters

A request with the parameter `millrace_probe` is a health check: the champion answers it, and no
counter counts it.

Triton gives an instance one request at a time, so `execute` passes the request to a thread and
returns. The thread answers by the request's response sender. The backend runs in a stub process and
imports nothing of Millrace.
"""

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as Timeout
from contextlib import suppress
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils
from split_counters import Counters  # type: ignore[import-not-found]
from split_key import hash_to_share, is_probe, sticky_value  # type: ignore[import-not-found]
from split_observations import compare_rows  # type: ignore[import-not-found]
from split_threads import DaemonPool  # type: ignore[import-not-found]

WORKERS = 20
CANDIDATE_CALLS = 12
"""Largest number of concurrent calls to the candidate. Together with WORKERS it is 32, the number
of concurrent BLS calls that the python backend allows per instance. So calls to a hanging candidate
leave room for calls to the champion.
"""
CLOSE_SECONDS = 5.0
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
REFUSED = re.compile(r"\[ONNXRuntimeError\] : 2 : |row \d+ cannot be answered: ")
"""Start of an error message of ONNX Runtime or Millrace's input rules that the client caused."""


class TritonPythonModel:
    """The splitter of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters; an exception here makes Triton refuse the model."""
        config = json.loads(args["model_config"])
        values = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self.arms = values["arms"]
        self.versions = {"champion": int(values["champion"]), "candidate": int(values["candidate"])}
        self.is_shadow = values["kind"] == "shadow"
        self.weight = float(values["weight_percent"]) / 100
        self.compared = float(values["compare_percent"]) / 100
        self.sticky_key = values["sticky_key"]
        self.tolerance = float(values["tolerance"])
        self.timeout = float(values["timeout_s"])
        self.salt = f"{args['model_name']}:{values['champion']}:{values['candidate']}:"
        self.counters = Counters(
            {"model": args["model_name"], "began": values["began"]},
            {arm: str(version) for arm, version in self.versions.items()},
            bound=float(values.get("goal_ms", "inf")) / 1e3,
        )
        self.workers, self.callers = DaemonPool(WORKERS), DaemonPool(CANDIDATE_CALLS)

    def execute(self, requests: Sequence[Any]) -> None:
        """Pass the requests to threads; while all are busy, requests wait in Triton's queue."""
        for request in requests:
            sender = request.get_response_sender()
            self.workers.submit(partial(self._serve, request, sender), wait=True)

    def finalize(self) -> None:
        """Wait for the calls in flight, and send the last counts."""
        self.workers.close(CLOSE_SECONDS)
        self.callers.close(CLOSE_SECONDS)
        self.counters.close()

    def _serve(self, request: Any, sender: Any) -> None:
        try:
            if is_probe(request):
                sender.send(client_response(self._call("champion", request)), FINAL)
            elif self.is_shadow:
                self._serve_shadow(request, sender)
            elif hash_to_share(self.salt, sticky_value(request, self.sticky_key)) < self.weight:
                self._serve_canary(request, sender)
            else:
                sender.send(client_response(self._call_champion(request)), FINAL)
        except Exception as error:  # otherwise the client would wait forever
            log_error(error)
            with suppress(pb_utils.TritonModelException):  # the request may be answered already
                sender.send(error_response(error), FINAL)

    def _serve_shadow(self, request: Any, sender: Any) -> None:
        champion = self._call_champion(request)
        sender.send(client_response(champion), FINAL)
        if champion.has_error():
            return

        def compare() -> None:
            candidate = self._call_timed("candidate", request)
            self.counters.add("candidate", requests=1, failures=int(candidate.has_error()))
            self._compare(champion, candidate)

        call = self._submit_candidate(compare)
        if call is not None:
            call.add_done_callback(log_failure)

    def _serve_canary(self, request: Any, sender: Any) -> None:
        """Answer from the candidate, or from the champion if the candidate fails."""
        call = self._submit_candidate(partial(self._call_timed, "candidate", request))
        answer = wait_for_answer(call, self.timeout) if call else None
        if answer is not None and not answer.has_error():
            sender.send(answer, FINAL)
            self.counters.add("candidate", requests=1)
            if random.random() < self.compared:
                self._compare(self._call("champion", request), answer)
            return
        champion = self._call("champion", request)
        sender.send(client_response(champion), FINAL)
        if call and not champion.has_error():
            self.counters.add("candidate", requests=1, failures=1)

    def _submit_candidate(self, job: Any) -> Any:
        """Call the candidate in a thread; None if too many calls are in flight."""
        call = self.callers.submit(job, wait=False)
        if call is None:
            self.counters.add("candidate", shed=1)
        return call

    def _call_champion(self, request: Any) -> Any:
        answer = self._call_timed("champion", request)
        self.counters.add("champion", requests=1, failures=int(answer.has_error()))
        return answer

    def _call_timed(self, arm: str, request: Any) -> Any:
        start = time.perf_counter()
        answer = self._call(arm, request)
        if not answer.has_error():
            self.counters.add_latency(arm, time.perf_counter() - start)
        return answer

    def _compare(self, champion: Any, candidate: Any) -> None:
        """Count whether both versions answered one random row of a request alike.

        Only one row counts, because rows of one request depend on each other, and the judge needs
        independent observations.
        """
        if champion.has_error() or candidate.has_error():
            return
        alike = compare_rows(read_outputs(champion), read_outputs(candidate), self.tolerance)
        if alike.size:
            row = random.randrange(alike.size)
            self.counters.add("candidate", compared_rows=1, agreeing_rows=int(alike[row]))

    def _call(self, arm: str, request: Any) -> Any:
        """Pass a request to a version, and return its answer, which may be an error."""
        return pb_utils.InferenceRequest(
            model_name=self.arms,
            model_version=self.versions[arm],
            inputs=request.inputs(),
            requested_output_names=list(request.requested_output_names()),
            request_id=request.request_id(),
        ).exec()


def wait_for_answer(call: Any, seconds: float) -> Any:
    """Return the answer of a call, or None if it does not arrive in time."""
    try:
        return call.result(seconds)
    except Timeout:
        return None


def read_outputs(answer: Any) -> dict[str, Any]:
    """Return the outputs of an answer, by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}


def client_response(answer: Any) -> Any:
    """Return the answer for the client; restore an error's code, which Triton 2.51 loses in BLS."""
    if answer.has_error() and REFUSED.match(text := answer.error().message()):
        code = pb_utils.TritonError.INVALID_ARG
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
    return answer


def error_response(error: Exception) -> Any:
    """Return the response for an error of the splitter."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))


def log_error(error: BaseException) -> None:
    """Log an error of the splitter itself."""
    pb_utils.Logger.log_error(f"the traffic splitter failed: {error!r}")


def log_failure(call: Any) -> None:
    """Log the error of a call that nobody waits for."""
    if (error := call.exception()) is not None:
        log_error(error)
