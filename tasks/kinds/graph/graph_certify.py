"""A graph's last stage: the golden batch and the whole test split, through the live server."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.export.onnx.graph_certificate import (
    GraphCertificate,
    GraphStage,
    largest_difference,
    relative_loss,
)
from millrace.models.common.arrays import Array
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.inference.answers import answers_of
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.row_batches import answer_rows, golden_requests
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.serving.release.golden_batch import TOLERANCE
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import one_line
from millrace.tasks.kinds.certified import certificate_of, certified_snapshot, pipeline_of
from millrace.tasks.kinds.graph.graph_files import GraphFiles, graph_files
from millrace.tasks.kinds.graph.graph_rows import first_rows, split_rows
from millrace.tasks.kinds.steps import Table
from millrace.tasks.progress import bar, log

OTHERWISE = 0.005
"""Share of the test split that another processor's rounding may answer otherwise."""
FILE, LIVE = "file", "triton"

Ask = Callable[[Array], Array]


@dataclass(frozen=True)
class LiveGraph:
    """A graph's certificate with its last stage, and what does not hold of it.

    Attributes:
        certificate: with the stage `triton`.
        version: the version that answer_rows.
        endpoint: the server.
        sizes: rows of the requests.
        faults: what is otherwise than the certificate says; empty where all of it holds.
    """

    certificate: GraphCertificate
    version: ModelVersion
    endpoint: str
    sizes: tuple[int, ...]
    faults: tuple[str, ...]

    def table(self) -> Table:
        """Return the stages for people."""
        certificate = self.certificate
        rows = [
            (
                stage.name + ("  ← chosen" if stage.name == certificate.candidate else ""),
                f"{stage.golden_difference:.2e}",
                "" if stage.metric is None else f"{stage.metric:.4f}",
                "" if stage.metric_loss is None else f"{stage.metric_loss:+.2%}",
            )
            for stage in certificate.stages
        ]
        head = ("stage", "golden difference", certificate.metric_name, "loss")
        sizes = ", ".join(map(str, self.sizes))
        what = f"{certificate.golden_rows} golden rows in requests of {sizes}"
        note = ("asked", f"{what}, and {certificate.test_rows:,} test rows")
        return Table(head, rows, (note,), numbers=1)


def certify_graph(installation: Installation, client: TritonClient, package: Package) -> LiveGraph:
    """Let the live version, and its file alone, answer the golden batch and the test split.

    Raises:
        InputError: the snapshot is another one now.
        TransientError: Triton does not answer.
    """
    files = graph_files(package)
    model, number = files.version.model, files.version.version
    work = _Work(installation, files)
    log.info("certify: version %s of %s, %s test rows", number, model, len(work.target))
    output = work.meaning.output

    def ask_live(rows: dict[str, Array]) -> Ask:
        return lambda part: client.predict(
            model, {name: array[part] for name, array in rows.items()}, version=number
        )[output]

    golden = files.golden_request()
    triton = work.stage(LIVE, ask_live(golden), work.live(ask_live))
    wanted = tuple(one_line(str(label)) for label in work.encoding.labels)
    one = {name: rows[:1] for name, rows in golden.items()}
    served = client.labels(model, one, output, len(wanted), version=number) if wanted else {}
    file = work.stage(FILE, work.golden_of_file(), work.test_of_file())
    faults = (
        *faults_of(work.certificate, file, triton, work.scale),
        *label_faults(wanted, served),
    )
    certificate = work.certificate.with_stage(triton)
    return LiveGraph(certificate, files.version, client.endpoint.grpc, work.sizes, faults)


class _Work:
    """What a version is measured on, and how."""

    def __init__(self, installation: Installation, files: GraphFiles) -> None:
        self.encoding = files.encoding
        self.certificate = certificate_of(files.package, GraphCertificate)
        pipeline = pipeline_of(files.package)
        self.meaning = answers_of(self.encoding)
        snapshot = certified_snapshot(installation, self.certificate)
        self.features, self.target = split_rows(pipeline, snapshot, self.encoding)
        rows = first_rows(pipeline, snapshot, len(self.target))
        self.request = self.encoding.request(rows)
        self.golden, self.answers = files.golden()
        self.session = OnnxSession(files.model, threads=this_machine().cores)
        self.most = pipeline.serving.max_batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the requests with golden rows."""
        parts = golden_requests(len(self.golden), self.most)
        return tuple(sorted({len(part) for part in parts}))

    @property
    def scale(self) -> float:
        """The largest magnitude of an answer, 1 at least: float32 rounds relatively."""
        return max(1.0, float(np.abs(self.answers).max(initial=0.0)))

    def golden_of_file(self) -> Ask:
        """Return how the file alone answers golden rows."""
        return lambda part: self.session.answer(self.encoding.input.trimmed(self.golden[part]))

    def test_of_file(self) -> Array:
        """Return the file's answers to the test split."""
        return answer_rows(self.session.answer, self.features, self.encoding.input)

    def live(self, ask: Callable[[dict[str, Array]], Ask]) -> Array:
        """Return the server's answers to the test split, in the largest batches."""
        answer, found = ask(self.request), []
        with bar("certify", len(self.target), "rows") as shown:
            for start in range(0, len(self.target), self.most):
                part = np.arange(start, min(start + self.most, len(self.target)))
                found.append(answer(part))
                shown.update(start + len(part))
        return np.concatenate(found)

    def stage(self, name: str, golden: Ask, test: Array) -> GraphStage:
        """Return a stage: the golden batch in every size against PyTorch, and the test split."""
        differences = [
            largest_difference(golden(part), self.answers[part])
            for part in golden_requests(len(self.golden), self.most)
        ]
        metric = self.meaning.metric_of_answers(test, self.target)
        pytorch = self.certificate.stages[0].metric or 0.0
        return GraphStage(
            name=name,
            golden_difference=max(differences),
            metric=metric,
            metric_loss=relative_loss(metric, pytorch),
        )


def faults_of(
    certificate: GraphCertificate, file: GraphStage, triton: GraphStage, scale: float
) -> Iterator[str]:
    """Say what is otherwise than the certificate says.

    Args:
        certificate: as it was registered.
        file: what the registered file answers now.
        triton: what the live server answers.
        scale: the largest magnitude of an answer.
    """
    chosen = certificate.stage(certificate.candidate)
    if chosen is None or chosen.metric is None:
        yield f"the certificate has no stage {certificate.candidate}"
        return
    allowed = chosen.golden_difference + TOLERANCE * scale
    # measured with TensorRT, it is not what the file alone answers
    for stage in (triton,) if chosen.ties else (file, triton):
        if not stage.golden_difference <= allowed:
            yield (
                f"{stage.name}: the golden batch differs by {stage.golden_difference:.2e} from "
                f"PyTorch, and {certificate.candidate} was certified for {allowed:.2e}"
            )
        metric = math.nan if stage.metric is None else stage.metric
        if not abs(metric - chosen.metric) <= OTHERWISE:
            yield (
                f"{stage.name}: {certificate.metric_name} {metric:.4f} on the test split, "
                f"and {certificate.candidate} was certified with {chosen.metric:.4f}"
            )
    if not certificate.passed:
        yield f"{certificate.candidate} did not hold the gate when it was made"


def label_faults(wanted: Sequence[str], served: Mapping[int, str]) -> Iterator[str]:
    """Say which class the live server calls otherwise than the version does.

    Args:
        wanted: the version's labels, in the order of the output.
        served: what the server calls each column.
    """
    for place, label in enumerate(wanted):
        if (seen := served.get(place)) != label:
            yield f"{LIVE}: its labels differ: column {place} is {seen!r}, and was {label!r}"
            return
