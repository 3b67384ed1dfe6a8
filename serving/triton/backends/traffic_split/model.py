"""A Triton Python-based backend that shares a model's requests between two of its versions.

It is served under the model's name while a rollout is on, and answers nothing itself: each request
goes on, whole and unchanged, by BLS to the champion or to the candidate, which another model, the
arms, has loaded. In a canary a share of the requests goes to the candidate; in a shadow the answer
is always the champion's, and the candidate is asked afterwards. Parameters in `config.pbtxt`:

    arms              the model that has both versions loaded
    champion          its version that serves now; so candidate
    kind              canary or shadow
    weight_percent    percent of the requests that the candidate answers in a canary
    compare_percent   percent of those that the champion answers too, to compare
    sticky_key        the request parameter by whose value requests stay with one version
    tolerance         relative difference up to which two numbers agree
    timeout_s         seconds after which a candidate has failed a request
    began             a label for all that is counted: when this step of the rollout began

A request with the parameter `millrace_probe` only asks whether all this works: the champion answers
it, and nothing is counted.

Triton gives an instance one request at a time, so `execute` hands it to a thread and returns, and
the thread answers by the request's response sender. It runs in a stub process and imports nothing
of Millrace.
"""

import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils
from split_agreement import agreement  # type: ignore[import-not-found]
from split_counters import Counters  # type: ignore[import-not-found]
from split_key import is_probe, share_of, sticky_value  # type: ignore[import-not-found]
from split_threads import Crew  # type: ignore[import-not-found]

WORKERS = 20
CANDIDATE_CALLS = 12
"""Together the 32 BLS calls that the python backend makes at a time for one instance: candidates
that hang cannot take the champion's.
"""
CLOSE_SECONDS = 5.0
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
REFUSED = re.compile(r"\[ONNXRuntimeError\] : 2 : |row \d+ cannot be answered: ")
"""How ONNX Runtime and our rules for requests begin an error that is the client's fault."""


class TritonPythonModel:
    """The splitter of one model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the parameters; an exception here makes Triton refuse the model."""
        config = json.loads(args["model_config"])
        values = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self.arms = values["arms"]
        self.versions = {"champion": int(values["champion"]), "candidate": int(values["candidate"])}
        self.shadow = values["kind"] == "shadow"
        self.weight = float(values["weight_percent"]) / 100
        self.compared = float(values["compare_percent"]) / 100
        self.sticky_key = values["sticky_key"]
        self.tolerance = float(values["tolerance"])
        self.timeout = float(values["timeout_s"])
        self.salt = f"{args['model_name']}:{values['champion']}:{values['candidate']}:"
        self.counters = Counters(
            {"model": args["model_name"], "began": values["began"]},
            {arm: str(version) for arm, version in self.versions.items()},
        )
        self.workers, self.callers = Crew(WORKERS), Crew(CANDIDATE_CALLS)

    def execute(self, requests: Sequence[Any]) -> None:
        """Hand the requests over; while all threads are busy they wait in Triton's own queue."""
        for request in requests:
            sender = request.get_response_sender()
            self.workers.give(partial(self._serve, request, sender), wait=True)

    def finalize(self) -> None:
        """Let calls in flight end, and hand over what was counted."""
        self.workers.close(CLOSE_SECONDS)
        self.callers.close(CLOSE_SECONDS)
        self.counters.close()

    def _serve(self, request: Any, sender: Any) -> None:
        try:
            if is_probe(request):
                sender.send(to_client(self._call("champion", request)), FINAL)
            elif self.shadow:
                self._serve_shadowed(request, sender)
            elif share_of(self.salt, sticky_value(request, self.sticky_key)) < self.weight:
                self._serve_canary(request, sender)
            else:
                sender.send(to_client(self._champion(request)), FINAL)
        except Exception as error:  # else the client would wait for ever
            log(error)
            with suppress(pb_utils.TritonModelException):  # it has its answer already
                sender.send(failure(error), FINAL)

    def _serve_shadowed(self, request: Any, sender: Any) -> None:
        champion = self._champion(request)
        sender.send(to_client(champion), FINAL)
        if champion.has_error():
            return

        def compare() -> None:
            candidate = self._candidate(request)
            self.counters.add("candidate", requests=1, failures=int(candidate.has_error()))
            self._compare(champion, candidate)

        call = self._in_bounds(compare)
        if call is not None:
            call.add_done_callback(log_failure)

    def _serve_canary(self, request: Any, sender: Any) -> None:
        """Answer by the candidate, and by the champion where the candidate cannot."""
        call = self._in_bounds(partial(self._candidate, request))
        answer = in_time(call, self.timeout) if call else None
        if answer is not None and not answer.has_error():
            sender.send(answer, FINAL)
            self.counters.add("candidate", requests=1)
            if random.random() < self.compared:
                self._compare(self._call("champion", request), answer)
            return
        champion = self._call("champion", request)
        sender.send(to_client(champion), FINAL)
        if call and not champion.has_error():
            self.counters.add("candidate", requests=1, failures=1)

    def _in_bounds(self, job: Any) -> Any:
        """Have a call of the candidate made; None when too many are under way."""
        call = self.callers.give(job, wait=False)
        if call is None:
            self.counters.add("candidate", shed=1)
        return call

    def _champion(self, request: Any) -> Any:
        answer = self._timed("champion", request)
        self.counters.add("champion", requests=1, failures=int(answer.has_error()))
        return answer

    def _candidate(self, request: Any) -> Any:
        return self._timed("candidate", request)

    def _timed(self, arm: str, request: Any) -> Any:
        start = time.perf_counter()
        answer = self._call(arm, request)
        if not answer.has_error():
            self.counters.latency(arm, time.perf_counter() - start)
        return answer

    def _compare(self, champion: Any, candidate: Any) -> None:
        """Count whether both answered a row alike: one of each request, by chance.

        Rows of one request are alike, and what counts them must be able to take them for drawn
        independently.
        """
        if champion.has_error() or candidate.has_error():
            return
        alike = agreement(arrays(champion), arrays(candidate), self.tolerance)
        if alike.size:
            row = random.randrange(alike.size)
            self.counters.add("candidate", compared_rows=1, agreeing_rows=int(alike[row]))

    def _call(self, arm: str, request: Any) -> Any:
        """Send a request on to a version, and return its answer, which may be an error."""
        return pb_utils.InferenceRequest(
            model_name=self.arms,
            model_version=self.versions[arm],
            inputs=request.inputs(),
            requested_output_names=list(request.requested_output_names()),
            request_id=request.request_id(),
        ).exec()


def in_time(call: Any, seconds: float) -> Any:
    """Return the answer of a call, or None when there is none after so long."""
    try:
        return call.result(seconds)
    except Late:
        return None


def arrays(answer: Any) -> dict[str, Any]:
    """Return the outputs of an answer."""
    return {tensor.name(): tensor.as_numpy() for tensor in answer.output_tensors()}


def to_client(answer: Any) -> Any:
    """Return an answer as it is; an error with its code, which a BLS call of Triton 2.51 loses."""
    if answer.has_error() and REFUSED.match(text := answer.error().message()):
        code = pb_utils.TritonError.INVALID_ARG
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
    return answer


def failure(error: Exception) -> Any:
    """Answer a request by an error."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))


def log(error: BaseException) -> None:
    """Write into Triton's log what the splitter itself did wrong."""
    pb_utils.Logger.log_error(f"the traffic splitter failed: {error!r}")


def log_failure(call: Any) -> None:
    """Write into Triton's log why a call that nobody waits for failed."""
    if (error := call.exception()) is not None:
        log(error)
