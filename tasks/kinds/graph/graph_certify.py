"""The last stage of a `graph` certificate: golden batch and test split, on the live server."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.export.onnx.graph_certificate import (
    GraphCertificate,
    GraphSpeed,
    GraphStage,
    largest_difference,
    relative_loss,
)
from millrace.export.onnx.measure_graph import measure_speed
from millrace.models.common.array_file import ArrayWriter
from millrace.models.common.arrays import Array
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.data import snapshots
from millrace.models.inference.answers import answers_of
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.row_batches import answer_rows, golden_requests
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.serving.release.golden_batch import TOLERANCE
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import one_line
from millrace.tasks.kinds.certified import certificate_of, certified_snapshot, pipeline_of
from millrace.tasks.kinds.graph.graph_files import GraphFiles, graph_files
from millrace.tasks.kinds.graph.graph_rows import split_rows
from millrace.tasks.kinds.steps import Table
from millrace.tasks.progress import bar, log

SCAN_ROWS = 65_536
"""Rows of the snapshot that are read at a time; those of the test split are sent."""
OTHERWISE = 0.005
"""Allowed change of the metric on the test split by another processor's rounding."""
FILE, LIVE = "file", "triton"

Ask = Callable[[Array], Array]


@dataclass(frozen=True)
class LiveGraph:
    """A certificate with the live server's answers as its last stage, and the faults found.

    Attributes:
        certificate: the certificate with the stage `triton`.
        version: the version that answered.
        endpoint: the address of the server.
        sizes: the numbers of rows in the requests.
        faults: differences from the certificate; empty if there are none.
    """

    certificate: GraphCertificate
    version: ModelVersion
    endpoint: str
    sizes: tuple[int, ...]
    faults: tuple[str, ...]

    def table(self) -> Table:
        """Return the stages as a table."""
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
        note = ("sent", f"{what}, and {certificate.test_rows:,} test rows")
        return Table(head, rows, (note,), numbers=1)


def certify_graph(installation: Installation, client: TritonClient, package: Package) -> LiveGraph:
    """Measure the live version and its ONNX file on the golden batch and the test split.

    Raises:
        InputError: the snapshot differs from the certified one.
        TransientError: Triton does not answer.
    """
    files = graph_files(package)
    model, number = files.version.model, files.version.version
    golden = files.golden_request()
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(installation, files, Path(folder))
        log.info("certify: version %s of %s, %s test rows", number, model, len(work.target))
        output = work.meaning.output

        def ask_live(rows: dict[str, Array]) -> Ask:
            return lambda part: client.predict(
                model, {name: array[part] for name, array in rows.items()}, version=number
            )[output]

        triton = work.stage(LIVE, ask_live(golden), work.live(ask_live))
        file = work.stage(FILE, work.golden_of_file(), work.test_of_file())
    wanted = tuple(one_line(str(label)) for label in work.encoding.labels)
    one = {name: rows[:1] for name, rows in golden.items()}
    served = client.labels(model, one, output, len(wanted), version=number) if wanted else {}
    faults = (
        *faults_of(work.certificate, file, triton, work.scale),
        *label_faults(wanted, served),
    )
    certificate = work.certificate.with_stage(triton)
    return LiveGraph(certificate, files.version, client.endpoint.grpc, work.sizes, faults)


def measure_graph_speed(package: Package, installation: Installation) -> GraphSpeed | None:
    """Measure the speed of a version's ONNX file, on a full batch of its golden rows.

    A variant that was certified with TensorRT is not measured, because its file is served with
    what TensorRT makes of it.

    Args:
        package: the version's files.
        installation: not needed.

    Raises:
        InputError: the files cannot be read.
        WorkError: the file cannot be run.
    """
    files, pipeline = graph_files(package), pipeline_of(package)
    chosen = certificate_of(package, GraphCertificate).chosen
    if chosen is None or chosen.ties:
        return None
    rows, serving = files.golden()[0], pipeline.serving
    return measure_speed(
        files.model,
        files.encoding.input,
        np.resize(rows, (serving.max_batch_size, *rows.shape[1:])),
        serving.intra_op_thread_count,
        pipeline.export.limits.of_process,
        gpu=serving.on_gpu,
    )


class _Work:
    """The rows that a version is measured on, and the measurements on these rows."""

    def __init__(self, installation: Installation, files: GraphFiles, folder: Path) -> None:
        self.encoding = files.encoding
        self.certificate = certificate_of(files.package, GraphCertificate)
        self.pipeline = pipeline_of(files.package)
        self.meaning = answers_of(self.encoding)
        self.snapshot = certified_snapshot(installation, self.certificate)
        self.features, self.target = split_rows(self.pipeline, self.snapshot, self.encoding, folder)
        self.folder = folder
        self.golden, self.answers = files.golden()
        self.session = OnnxSession(
            files.model, threads=this_machine().cores, gpu=self.pipeline.serving.on_gpu
        )
        self.most = self.pipeline.serving.max_batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows in the requests with golden rows."""
        parts = golden_requests(len(self.golden), self.most)
        return tuple(sorted({len(part) for part in parts}))

    @property
    def scale(self) -> float:
        """The largest magnitude of an answer, at least 1, because float32's error is relative."""
        return max(1.0, float(np.abs(self.answers).max(initial=0.0)))

    def golden_of_file(self) -> Ask:
        """Return the function that answers golden rows with the ONNX file, without the server."""
        return lambda part: self.session.answer(self.encoding.input.trimmed(self.golden[part]))

    def test_of_file(self) -> Array:
        """Return the ONNX file's answers to the test split."""
        return answer_rows(self.session.answer, self.features, self.encoding.input)

    def live(self, ask: Callable[[dict[str, Array]], Ask]) -> Array:
        """Return the server's answers to the test split, in batches of the maximum size."""
        columns, shares = self.snapshot.schema.features, self.pipeline.dataset.split
        batches = snapshots.scan(
            self.snapshot, "test", shares, columns=columns, batch_rows=SCAN_ROWS
        )
        file, count, done = self.folder / "live.npy", len(self.target), 0
        with bar("certify", count, "rows") as shown, ArrayWriter(file, count) as writer:
            for batch in batches:
                answer, rows = ask(self.encoding.request(batch)), np.arange(batch.num_rows)
                for part in np.split(rows, range(self.most, len(rows), self.most)):
                    writer.append(answer(part))
                    done += len(part)
                    shown.update(done)
        answers: Array = np.load(file, mmap_mode="r")
        return answers

    def stage(self, name: str, golden: Ask, test: Array) -> GraphStage:
        """Return a stage: largest difference from PyTorch over golden requests, and the metric."""
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
    """Yield a message for each difference from the certificate.

    Args:
        certificate: the certificate, as it was registered.
        file: the stage of the registered ONNX file, measured now.
        triton: the stage of the live server.
        scale: the largest magnitude of an answer.
    """
    chosen = certificate.chosen
    if chosen is None or chosen.metric is None:
        yield f"the certificate has no measurements of the variant {certificate.candidate}"
        return
    allowed = chosen.golden_difference + TOLERANCE * scale
    # A variant certified with TensorRT answers differently than its ONNX file without TensorRT.
    for stage in (triton,) if chosen.ties else (file, triton):
        if not stage.golden_difference <= allowed:
            yield (
                f"{stage.name}: answers to the golden batch differ by "
                f"{stage.golden_difference:.2e} from PyTorch's, and at most {allowed:.2e} is "
                f"allowed for {certificate.candidate}"
            )
        metric = math.nan if stage.metric is None else stage.metric
        if not abs(metric - chosen.metric) <= OTHERWISE:
            yield (
                f"{stage.name}: {certificate.metric_name} {metric:.4f} on the test split, "
                f"and {certificate.candidate} was certified with {chosen.metric:.4f}"
            )
    if not certificate.passed:
        yield f"{certificate.candidate} did not pass its gates when it was certified"


def label_faults(wanted: Sequence[str], served: Mapping[int, str]) -> Iterator[str]:
    """Yield a message for the first class that has another label on the live server.

    Args:
        wanted: the version's labels, in the order of the output.
        served: the server's label of each output column.
    """
    for place, label in enumerate(wanted):
        if (seen := served.get(place)) != label:
            yield f"{LIVE}: output column {place} has the label {seen!r} instead of {label!r}"
            return
