"""What a kind of model answers at each step of the line, and what the steps hand on.

Flows and tasks know these types alone. Ray workers import kinds, so nothing here needs Prefect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from millrace.models.config.model_kind import load_object

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from millrace.export.candidate import AnyCandidate
    from millrace.export.certificate import Certificate, Header
    from millrace.export.select import Gates
    from millrace.models.common.installation import Installation
    from millrace.models.config.model_kind import ModelKind
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.data.schema import Column
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import ModelVersion, Package
    from millrace.models.training.train_job import TrainJob
    from millrace.serving.batch.actor import ScoringJob
    from millrace.serving.batch.monitoring.live_model import Live
    from millrace.serving.release.version_check import VersionCheck
    from millrace.serving.triton.client import TritonClient
    from millrace.serving.triton.version_folder import Artifact

Row = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared(Generic[T]):
    """What training starts from.

    Attributes:
        job: what the workers run.
        details: what only the kind knows of it.
        epochs: how many there are to do; None where that is not known.
        summary: what is trained on, in words.
        weights: file or folder of a checkpoint that the run keeps, relative to it.
        artifact: where the run keeps it.
        tags: of the run.
    """

    job: TrainJob
    details: T
    total: int | None
    summary: str
    weights: str
    artifact: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained(Generic[T]):
    """What training left.

    Attributes:
        prepared: what it started from.
        checkpoint: folder of the last checkpoint.
        history: metrics of every report.
        recoveries: the epochs or steps that were done at each recovery from a failure.
    """

    prepared: Prepared[T]
    checkpoint: Path
    history: tuple[dict[str, Any], ...]
    recoveries: tuple[int, ...]

    @property
    def details(self) -> T:
        """What only the kind knows of it."""
        return self.prepared.details

    @property
    def weights(self) -> Path:
        """The file or folder that the run keeps."""
        return self.checkpoint / self.prepared.weights


class Export(Protocol):
    """The export of one training run: makes and measures candidates, certifies the chosen one."""

    @property
    def gates(self) -> Gates:
        """What a candidate may lose."""
        ...

    def candidates(self) -> Iterator[AnyCandidate]:
        """Make and measure every candidate that is asked for, one at a time, its gates applied.

        Raises:
            MillraceError: nothing can be measured at all.
        """
        ...

    def certificate(self, header: Header, candidates: Sequence[Any], chosen: Any) -> Certificate:
        """Return the certificate of the chosen candidate."""
        ...

    def model_files(self, chosen: Any) -> Mapping[str, Path]:
        """Return the files to register, by name."""
        ...

    def evidence(self, chosen: Any, certificate: Any) -> Mapping[str, str | Path]:
        """Return what lies beside them beyond certificate and pipeline file: texts or files.

        Raises:
            WorkError: the chosen candidate does not answer what it must be certified with.
        """
        ...

    def reproduction(self) -> tuple[Path, ...]:
        """Return what makes the candidates again: programs, their commands and what they read."""
        ...


@dataclass(frozen=True)
class Exported:
    """What the export left.

    Attributes:
        export: how it was made.
        candidates: every variant that was asked for, measured or with the reason why not.
        chosen: the one to register.
        certificate: its evidence.
        files: the files to register, by name.
        evidence: the files that go beside them, by name.
    """

    export: Any
    candidates: tuple[AnyCandidate, ...]
    chosen: AnyCandidate
    certificate: Any
    files: Mapping[str, Path]
    evidence: Mapping[str, Path]


@dataclass(frozen=True)
class KindReport:
    """What a kind shows of a run.

    Attributes:
        metrics: of the run, beside those of training.
        texts: files of the run, by path.
        figures: pictures of the run, by path.
        tags: of the version.
        description: of the version's page, Markdown.
        facts: of the run's page: what was learnt from.
        sections: of the run's page: titles and Markdown.
        rows: of the table on the terminal: what is to beat, and how good the model is.
        json: what `--json` prints beside what every kind has.
        files: kept in the run's `export/`, beside what makes the candidates again.
    """

    metrics: Mapping[str, float]
    texts: Mapping[str, str]
    figures: Mapping[str, Figure]
    tags: Mapping[str, str]
    description: str
    facts: Sequence[Row]
    sections: Sequence[Row]
    rows: Sequence[Row]
    json: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Measured:
    """What a version was certified with.

    Attributes:
        passed: whether its certificate is of this version, and says that it passed its gates.
        metric: its metric on its test split; None if there is none.
        name: of the metric.
        smaller_is_better: of two metrics.
    """

    passed: bool
    metric: float | None
    name: str
    smaller_is_better: bool = False


class VersionEvidence(Protocol):
    """One version's files, as a release needs them."""

    def artifact(self) -> Artifact:
        """Return what is staged.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def expected(self) -> VersionCheck:
        """Return what the version must answer.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def measured(self) -> Measured:
        """Return what it was certified with.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...

    def metric_of(self, other: Package) -> float | None:
        """Return another version's metric on the test split of this one; None if it has none.

        Raises:
            MillraceError: the rows cannot be read, or the other cannot answer them.
            KeyError: the rows lack a column that the other needs.
        """
        ...

    def describe(self, difference: float | None) -> tuple[str, str]:
        """Return the evidence as Markdown, and the certificate as JSON with the live stage in it.

        Args:
            difference: of the live Triton's answers from the certified ones; None if not measured.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        head: names of the columns.
        rows: cells.
        notes: lines below it, each with its label.
        numbers: the first column that is aligned to the right; 0 for none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[Row] = ()
    numbers: int = 0


class LiveCertificate(Protocol):
    """A certificate with its last stage, and what does not hold of it."""

    @property
    def certificate(self) -> Any:
        """The certificate, with what the live server answers."""
        ...

    @property
    def version(self) -> ModelVersion:
        """The version that answered."""
        ...

    @property
    def endpoint(self) -> str:
        """The server."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """What differs from the certificate; empty where all of it holds."""
        ...

    def table(self) -> Table:
        """Return the stages for people."""
        ...


class Answer(Protocol):
    """What the live model answered to `millrace predict`."""

    @property
    def title(self) -> str:
        """Who answered, and how fast."""
        ...

    def table(self) -> Table:
        """Return the answers for people; no rows where they were printed as they came."""
        ...


@dataclass(frozen=True)
class Question:
    """What `millrace predict` asks.

    Attributes:
        rows: JSON Lines file, `-` for stdin; None for none.
        text: `-` for stdin; None for none. With neither it is a golden request.
        say: takes the pieces of an answer that comes as a stream.
    """

    rows: str | None
    text: str | None
    say: Callable[[str], None]


@dataclass(frozen=True)
class LiveSample:
    """How a batch job is compared with the live model.

    Attributes:
        rows: of its input that are asked.
        seconds: for all of them.
        share: that may differ, where the pipeline file does not say.
        obstacle: why nothing can be compared; empty where it can.
    """

    rows: int
    seconds: float
    share: float
    obstacle: str = ""


class KindSteps(Protocol):
    """What a kind of model answers at each step of the line: the functions of `ModelKind.steps`."""

    def names_versions(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline names a registered version."""
        ...

    def pin_versions(self, pipeline: Pipeline, installation: Installation) -> Pipeline:
        """Return the pipeline with the registered versions that it names pinned.

        Args:
            pipeline: as the user wrote it.
            installation: where the registry is; not asked where the pipeline names none.

        Raises:
            InputError: one is not there, or cannot be what it is named as.
            TransientError: MLflow cannot be reached.
        """
        ...

    def prepare(
        self, pipeline: Pipeline, installation: Installation, snapshot: Snapshot, run: TrackedRun
    ) -> Prepared[Any]:
        """Return what training starts from.

        Raises:
            InputError: family, data and training do not fit.
        """
        ...

    def describe_progress(self, metrics: Mapping[str, Any]) -> str:
        """Return in a few words how training goes, from the metrics of a report."""
        ...

    def export(
        self,
        pipeline: Pipeline,
        installation: Installation,
        snapshot: Snapshot,
        trained: Trained[Any],
        folder: Path,
    ) -> Export:
        """Return what exports the trained model into an empty folder."""
        ...

    def log_model(
        self, run: TrackedRun, files: Mapping[str, Path], evidence: Mapping[str, Path]
    ) -> Any:
        """Log a model to a run, as MLflow's own tools read it where they can.

        Args:
            run: the open run.
            files: the model's files, by name.
            evidence: what lies beside them, by name.

        Returns:
            MLflow's `ModelInfo`.
        """
        ...

    def report(
        self, pipeline: Pipeline, snapshot: Snapshot, trained: Trained[Any], exported: Exported
    ) -> KindReport:
        """Return what is shown of a run."""
        ...

    def evidence(self, package: Package, installation: Installation) -> VersionEvidence:
        """Return a version's files as a release needs them."""
        ...

    def certify(
        self, installation: Installation, client: TritonClient, package: Package
    ) -> LiveCertificate:
        """Ask the live version what it was certified to answer, and measure its files again.

        Raises:
            InputError: the snapshot is another one now.
            TransientError: Triton does not answer.
            WorkError: the model does not answer.
        """
        ...

    def predict(self, client: TritonClient, package: Package, question: Question) -> Answer:
        """Ask the live version.

        Raises:
            InputError: the model does not take such a question.
            TransientError: Triton cannot be reached, or is too busy.
        """
        ...

    def load_request(self, package: Package) -> Mapping[str, Any]:
        """Return a request for a load generator.

        Raises:
            InputError: the model answers in streams.
        """
        ...

    def batch_job(
        self,
        pipeline: Pipeline,
        package: Package,
        installation: Installation,
        held: tuple[Column, ...],
    ) -> ScoringJob:
        """Return what scores rows with a version.

        Args:
            pipeline: how.
            package: the version's files.
            installation: where everything is; Ray must be connected.
            held: columns as the dataset holds them; none where there is no dataset.

        Raises:
            InputError: Ray has not what the job needs.
        """
        ...

    def with_bins(self, job: Any, snapshot: Snapshot) -> Any:
        """Return the job with the distributions that the version learnt from.

        Raises:
            OSError: the snapshot's rows cannot be read.
        """
        ...

    def live_sample(self, job: Any) -> LiveSample:
        """Return how a job is compared with the live model."""
        ...

    def live_model(
        self, job: Any, package: Package, installation: Installation, client: TritonClient
    ) -> tuple[Live, float]:
        """Return the live model, and the share of its answers that may differ by chance."""
        ...


class _Steps:
    """The steps of one kind; each is imported when it is taken."""

    def __init__(self, kind: ModelKind) -> None:
        self._functions = kind.steps

    def __getattr__(self, step: str) -> Any:
        return load_object(self._functions[step])


def steps_of(kind: ModelKind) -> KindSteps:
    """Return what a kind answers at each step."""
    return cast(KindSteps, _Steps(kind))
