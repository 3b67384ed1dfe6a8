"""Triton's side: one behind its guard and one bare, which serve the same models."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.http_load import HttpRequest
from bench.peers.models import INPUTS, Question, slow_model, small_model
from bench.profiled_digits import NothingKept
from bench.server import Bench, batch_of
from millrace.models.common.digest import digest_of
from millrace.models.common.hardware import this_machine
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.batch_workload import BatchWorkload
from millrace.serving.profile.profiler import Profiler
from millrace.serving.profile.record import Configuration as Settings
from millrace.serving.profile.workload import Configuration
from millrace.serving.triton.graph.triton_graph import artifact_of_graph

GUARDED, BARE, PROFILED = "Triton", "Triton past the guard", "Triton profiled"
GOAL = SloSpec(rate=100, p99_ms=50)
ROWS = 64
SMALL_SECONDS, SLOW_SECONDS = 1, 2


@dataclass(frozen=True)
class ServedModel:
    """A model on Triton.

    Attributes:
        question: the model, and the request to it.
        servers: the request to each Triton; `GUARDED` and `BARE` have the defaults of `serving`.
        seconds: of a measurement; at 128 clients each needs several answers.
        profiled: what `millrace profile` chose for `PROFILED`; None if it was not asked.
    """

    question: Question
    servers: Mapping[str, HttpRequest]
    seconds: int
    profiled: Configuration | None = None


@dataclass(frozen=True)
class TritonSide:
    """Both Tritons; a model is written and served when it is first needed.

    Attributes:
        guarded: the one behind its guard.
        bare: the other one.
        folder: of the models.
    """

    guarded: Bench
    bare: Bench
    folder: Path

    @cached_property
    def small(self) -> ServedModel:
        """The small model."""
        question = small_model(self.folder)
        return ServedModel(question, self._serve_defaults("small", question), SMALL_SECONDS)

    @cached_property
    def slow(self) -> ServedModel:
        """The model of about 5 ms a row, also as `millrace profile` would serve it."""
        question = slow_model(self.folder)
        servers = self._serve_defaults("slow", question)
        found = profile(question.onnx)
        profiled = _serve(
            self.guarded,
            "profiled",
            question,
            Settings(settings=found.settings).apply(ServingSpec()),
        )
        return ServedModel(question, servers | {PROFILED: profiled}, SLOW_SECONDS, found)

    def _serve_defaults(self, model: str, question: Question) -> dict[str, HttpRequest]:
        sides = {GUARDED: self.guarded, BARE: self.bare}
        return {name: _serve(each, model, question, ServingSpec()) for name, each in sides.items()}


def _serve(bench: Bench, model: str, question: Question, serving: ServingSpec) -> HttpRequest:
    bench.serve(model, question.onnx, serving)
    request = bench.http_request(model, question.row)
    question.check("Triton", request.send()["outputs"][0]["data"])
    return request


def profile(onnx: Path) -> Configuration:
    """Return what `millrace profile` chooses for a model, with all cores of this machine."""
    artifact = artifact_of_graph(onnx, digest_of(onnx))
    rows, cores = batch_of(INPUTS, ROWS), this_machine().cores
    workload = BatchWorkload(artifact, rows, GOAL, cores, NothingKept(), lambda _: None)
    return Profiler(workload, GOAL, lambda _: None).run().chosen.configuration
