"""Step: the last stage of a certificate, through the live server and on the whole test split."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from export.certificate import Certificate, Stage, largest_difference, relative_loss
from models.answers import answers_of
from models.arrays import Array
from models.errors import InputError
from models.machine import this_machine
from models.onnx_session import OnnxSession
from models.package import ModelVersion, Package
from models.pieces import answered, golden_requests
from models.places import Places
from models.registry import registry_of
from models.snapshots import open_snapshot
from models.tracking import TrackedRun
from serving.client import TritonClient
from serving.trial import TOLERANCE
from tasks.compared import first_rows, split_rows
from tasks.kept import certificate_of, pipeline_of
from tasks.progress import bar, log

OTHERWISE = 0.005
"""Share of the test split that another processor's rounding may answer otherwise."""
FILE, LIVE = "file", "triton"
LIVE_FILE = "certificate-live.json"
"""Beside the certificate, which the next release writes again."""

Ask = Callable[[slice], Array]


@dataclass(frozen=True)
class LiveCertificate:
    """A certificate with its last stage, and what does not hold of it.

    Attributes:
        certificate: with the stage `triton`.
        version: the version that answered.
        endpoint: the server.
        sizes: rows of the requests.
        faults: what is otherwise than the certificate says; empty where all of it holds.
    """

    certificate: Certificate
    version: ModelVersion
    endpoint: str
    sizes: tuple[int, ...]
    faults: tuple[str, ...]


def certify_live(places: Places, model: str) -> LiveCertificate:
    """Let the live version, and its file alone, answer the golden batch and the test split.

    The certificate with what was found is logged to the run that made the version.

    Raises:
        InputError: the model is not served; its files are not those that were registered; or the
            snapshot is another one now.
        TransientError: Triton or MLflow does not answer.
    """
    registry, endpoint = registry_of(places), places.triton[0]
    with TritonClient(endpoint) as client:
        number = client.live_version(model)
        if number is None:
            raise InputError(
                f"Triton does not serve {model!r}", hint="set the alias champion: millrace release"
            )
        package = registry.fetch(registry.version(model, number))
        work = _Work(places, package)
        log.info("certify: version %s of %s, %s test rows", number, model, len(work.target))
        output = work.meaning.output

        def ask_live(rows: dict[str, Array]) -> Ask:
            return lambda part: client.predict(
                model, {name: array[part] for name, array in rows.items()}, version=number
            )[output]

        triton = work.stage(LIVE, ask_live(package.golden_request()), work.live(ask_live))
    file = work.stage(FILE, work.golden_of_file(), work.test_of_file())
    certificate = work.certificate.with_stage(triton)
    run = TrackedRun(places.tracking_uri, "", package.version.run_id)
    run.log_text(certificate.to_json(), LIVE_FILE)
    faults = tuple(faults_of(work.certificate, file, triton, work.scale))
    return LiveCertificate(certificate, package.version, endpoint.grpc, work.sizes, faults)


class _Work:
    """What a version is measured on, and how."""

    def __init__(self, places: Places, package: Package) -> None:
        self.package, self.encoding = package, package.encoding
        self.certificate, pipeline = certificate_of(package), pipeline_of(package)
        self.meaning = answers_of(self.encoding)
        kept = self.certificate
        snapshot = open_snapshot(places, kept.dataset, kept.dataset_version)
        if snapshot.digest != kept.dataset_digest:
            raise InputError(
                f"version {kept.dataset_version} of the dataset {kept.dataset} is not the one that "
                "was certified",
                seen=snapshot.digest,
                valid=kept.dataset_digest,
                hint="run the pipeline again",
            )
        self.features, self.target = split_rows(pipeline, snapshot, self.encoding)
        rows = first_rows(pipeline, snapshot, len(self.target))
        self.request = self.encoding.request(rows)
        self.golden, self.answers = package.golden()
        self.session = OnnxSession(package.model, threads=this_machine().cores)
        self.most = pipeline.serving.max_batch_size

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the requests with golden rows."""
        parts = golden_requests(len(self.golden), self.most)
        return tuple(sorted({part.stop - part.start for part in parts}))

    @property
    def scale(self) -> float:
        """The largest magnitude of an answer, 1 at least: float32 rounds relatively."""
        return max(1.0, float(np.abs(self.answers).max(initial=0.0)))

    def golden_of_file(self) -> Ask:
        """Return how the file alone answers golden rows."""
        return lambda part: self.session.answer(self.encoding.input.trimmed(self.golden[part]))

    def test_of_file(self) -> Array:
        """Return the file's answers to the test split."""
        return answered(self.session.answer, self.features, self.encoding.input)

    def live(self, ask: Callable[[dict[str, Array]], Ask]) -> Array:
        """Return the server's answers to the test split, in the largest batches."""
        answer, found = ask(self.request), []
        with bar("certify", len(self.target), "rows") as shown:
            for part in _parts(len(self.target), self.most):
                found.append(answer(part))
                shown.update(min(part.stop, len(self.target)))
        return np.concatenate(found)

    def stage(self, name: str, golden: Ask, test: Array) -> Stage:
        """Return a stage: the golden batch in every size against PyTorch, and the test split."""
        differences = [
            largest_difference(golden(part), self.answers[part])
            for part in golden_requests(len(self.golden), self.most)
        ]
        metric = self.meaning.metric_of_answers(test, self.target)
        pytorch = self.certificate.stages[0].metric or 0.0
        return Stage(
            name=name,
            golden_difference=max(differences),
            metric=metric,
            metric_loss=relative_loss(metric, pytorch),
        )


def faults_of(certificate: Certificate, file: Stage, triton: Stage, scale: float) -> Iterator[str]:
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


def _parts(rows: int, size: int) -> Iterator[slice]:
    for start in range(0, rows, size):
        yield slice(start, start + size)
