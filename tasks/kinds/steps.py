"""The interface that each kind of model implements, and the types that its steps exchange.

Flows and tasks use only these types. Ray workers import kinds, so nothing here needs Prefect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast

from millrace.models.config.model_kind import load_object

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow.models import Model

    from millrace.export.candidate import AnyCandidate, Speed
    from millrace.export.certificate import Certificate, Header
    from millrace.export.select import Gates
    from millrace.models.common.installation import Installation
    from millrace.models.comparison.paired_scores import PairedScores
    from millrace.models.config.model_kind import ModelKind
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.data.schema import Column
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.planner.work import Work
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import ModelVersion, Package
    from millrace.models.training.train_job import TrainJob
    from millrace.serving.batch.actor import ScoringJob
    from millrace.serving.batch.monitoring.live_model import Live
    from millrace.serving.release.version_check import VersionCheck
    from millrace.serving.triton.client import TritonClient
    from millrace.serving.triton.version_folder import Artifact
    from millrace.tasks.kinds.data_facts import ReadFacts
    from millrace.tasks.reports.drawing import Draw

Row = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Prepared(Generic[T]):
    """A training that is ready to start.

    Attributes:
        job: the job that the workers run.
        details: details that only the kind uses.
        total: the number of epochs or rounds; None if it is not known.
        summary: a short description of the training data.
        weights: the file or folder of weights to store, relative to the checkpoint.
        artifact: the artifact path of the weights in the MLflow run.
        tags: tags of the MLflow run.
        chosen: settings that the pipeline file may leave open, as they are used.
    """

    job: TrainJob
    details: T
    total: int | None
    summary: str
    weights: str
    artifact: str
    tags: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained(Generic[T]):
    """The result of a training.

    Attributes:
        prepared: the training, as it was prepared.
        checkpoint: the folder of the last checkpoint.
        history: the metrics of every report.
        recoveries: for each failure, the number of epochs or steps in the checkpoint that training
            resumed from.
    """

    prepared: Prepared[T]
    checkpoint: Path
    history: tuple[dict[str, Any], ...]
    recoveries: tuple[int, ...]

    @property
    def details(self) -> T:
        """Details that only the kind uses."""
        return self.prepared.details

    @property
    def weights(self) -> Path:
        """The file or folder of weights that the MLflow run stores."""
        return self.checkpoint / self.prepared.weights


class Export(Protocol):
    """The export of one training run: makes and measures candidates, certifies the chosen one."""

    @property
    def gates(self) -> Gates:
        """The limits that a candidate must stay within."""
        ...

    def candidates(self) -> Iterator[AnyCandidate]:
        """Make and measure every requested candidate, one at a time, and check its gates.

        Raises:
            MillraceError: no candidate can be measured.
        """
        ...

    def certificate(self, header: Header, candidates: Sequence[Any], chosen: Any) -> Certificate:
        """Return the certificate of the chosen candidate."""
        ...

    def model_files(self, chosen: Any) -> Mapping[str, Path]:
        """Return the files to register, by name."""
        ...

    def evidence(self, chosen: Any, certificate: Any) -> Mapping[str, str | Path]:
        """Return the evidence to register (texts or files), without certificate and pipeline file.

        Raises:
            WorkError: the chosen candidate fails to answer the golden rows or prompts.
        """
        ...

    def reproduction(self) -> tuple[Path, ...]:
        """Return the files that reproduce the candidates: programs, their commands and inputs."""
        ...


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        export: the export that made the candidates.
        candidates: every requested variant, with its measurements or the reason why it has none.
        chosen: the candidate to register.
        certificate: the certificate of the chosen candidate.
        files: the model's files to register, by name.
        evidence: the evidence files to register with them, by name.
    """

    export: Any
    candidates: tuple[AnyCandidate, ...]
    chosen: AnyCandidate
    certificate: Any
    files: Mapping[str, Path]
    evidence: Mapping[str, Path]


@dataclass(frozen=True)
class KindReport:
    """A kind's report on a training run.

    Attributes:
        metrics: metrics of the MLflow run, in addition to those of training.
        texts: text files of the run, by artifact path.
        tags: tags of the registered version.
        description: the description of the version's page, in Markdown.
        facts: table rows about the training data, for the run's page.
        sections: sections of the run's page: titles and Markdown.
        rows: rows of the printed table: the baselines, and the model's metrics.
        json: keys that `--json` prints in addition to those of every kind.
        files: files to store in the run's `export/`, beside the files that reproduce candidates.
    """

    metrics: Mapping[str, float]
    texts: Mapping[str, str]
    tags: Mapping[str, str]
    description: str
    facts: Sequence[Row]
    sections: Sequence[Row]
    rows: Sequence[Row]
    json: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class CertifiedFigures:
    """What the registered variant was measured to be; None where it was not measured.

    Attributes:
        variant: its name.
        size_bytes: size of its files.
        latency_ms: milliseconds of one request when no other request is running.
        per_second: rows or tokens per second at full load.
        machine: the machine that measured it.
    """

    variant: str = ""
    size_bytes: int | None = None
    latency_ms: float | None = None
    per_second: float | None = None
    machine: str = ""


@dataclass(frozen=True)
class Measured:
    """The certified metric of a version.

    Attributes:
        passed: whether the certificate is of this version, and says that the version passed its
            gates.
        metric: the version's metric on its test split; None if there is none.
        name: the name of the metric.
        smaller_is_better: whether a smaller metric is better.
        figures: what its variant was measured to be on the machine of its certificate.
        rows: number of rows that the metric was measured on; None: not known.
    """

    passed: bool
    metric: float | None
    name: str
    smaller_is_better: bool = False
    figures: CertifiedFigures = CertifiedFigures()
    rows: int | None = None


class VersionEvidence(Protocol):
    """The evidence that a release needs about one version."""

    compares_quickly: ClassVar[bool]
    """Whether `paired_scores` takes seconds, so that each run may ask for them."""

    def artifact(self) -> Artifact:
        """Return the artifact that a release copies into Triton's model repository.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def expected(self) -> VersionCheck:
        """Return the check that the loaded version must pass.

        Raises:
            InputError: the files cannot be read.
        """
        ...

    def measured(self) -> Measured:
        """Return the version's certified metric, and whether the version passed its gates.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...

    def metric_of(self, other: Package) -> float | None:
        """Return another version's metric on this version's test split.

        Return None if the metrics of the two versions cannot be compared.

        Raises:
            MillraceError: the rows cannot be read, or the other version cannot answer them.
            KeyError: the rows lack a column that the other version needs.
        """
        ...

    def paired_scores(self, other: Package, columns: Sequence[str] | None) -> PairedScores | None:
        """Return the scores of another version and of this one on this version's test split.

        Return None if both cannot be compared row by row, because their metrics differ.

        Args:
            other: the other version, whose scores are the first ones.
            columns: the columns whose values are slices; None: those with few values.

        Raises:
            MillraceError: the rows cannot be read, a column does not exist, or a version cannot
                answer them.
            KeyError: the rows lack a column that the other version needs.
        """
        ...

    def describe(self, difference: float | None) -> tuple[str, str]:
        """Return the evidence as Markdown, and the certificate with the live stage as JSON.

        Args:
            difference: the difference of the live Triton's answers from the certified ones; None:
                not measured.

        Raises:
            InputError: the certificate cannot be read.
        """
        ...


@dataclass(frozen=True)
class Table:
    """A table to print.

    Attributes:
        head: the names of the columns.
        rows: the cells of each row.
        notes: lines below the table, each with its label.
        numbers: the index of the first right-aligned column; 0: none.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[Row] = ()
    numbers: int = 0


class LiveCertificate(Protocol):
    """A certificate with the live server's answers as its last stage, and the faults found."""

    @property
    def certificate(self) -> Any:
        """The certificate, with the stage of the live server."""
        ...

    @property
    def version(self) -> ModelVersion:
        """The version that answered."""
        ...

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        ...

    @property
    def faults(self) -> tuple[str, ...]:
        """Differences from the certificate; empty if there are none."""
        ...

    def table(self) -> Table:
        """Return the stages as a table."""
        ...


class Answer(Protocol):
    """The live model's answer to `millrace predict`."""

    @property
    def title(self) -> str:
        """The version and the server that answered."""
        ...

    def table(self) -> Table:
        """Return the answers as a table; it has no rows if the answers were already printed."""
        ...


@dataclass(frozen=True)
class Question:
    """The input of `millrace predict`. With neither rows nor text, a golden request is sent.

    Attributes:
        rows: a JSON Lines file, or `-` for stdin; None: no rows.
        text: the text to continue, or `-` for stdin; None: no text.
        say: a function that receives the chunks of a streamed answer.
    """

    rows: str | None
    text: str | None
    say: Callable[[str], None]


@dataclass(frozen=True)
class LiveSample:
    """How a batch job is compared with the live model.

    Attributes:
        rows: the number of input rows to send to the live model.
        seconds: the time limit for all of these rows.
        share: the share of answers that may differ, unless the pipeline file sets it.
        obstacle: why nothing can be compared; empty if a comparison is possible.
    """

    rows: int
    seconds: float
    share: float
    obstacle: str = ""


class KindSteps(Protocol):
    """The steps that each kind of model implements: the functions of `ModelKind.steps`."""

    def names_versions(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline names a registered version."""
        ...

    def pin_versions(self, pipeline: Pipeline, installation: Installation) -> Pipeline:
        """Pin or check the registered versions that a pipeline names, and return the pipeline.

        Args:
            pipeline: the pipeline, as the user wrote it.
            installation: the installation with the registry; unused if no version is named.

        Raises:
            InputError: a version does not exist, or does not fit its use.
            TransientError: MLflow cannot be reached.
        """
        ...

    def plan(self, pipeline: Pipeline, installation: Installation, read_facts: ReadFacts) -> Work:
        """Return what training, serving and batch of a pipeline ask of a machine.

        Args:
            pipeline: the pipeline, with the versions that it names pinned.
            installation: has the registry, for a base model that is a registered version.
            read_facts: reads what is known of the data.

        Raises:
            InputError: the model cannot be built, or its size depends on unknown data.
        """
        ...

    def prepare(
        self, pipeline: Pipeline, installation: Installation, snapshot: Snapshot, run: TrackedRun
    ) -> Prepared[Any]:
        """Prepare a training.

        Raises:
            InputError: family, data and training settings do not fit together.
        """
        ...

    def describe_progress(self, metrics: Mapping[str, Any]) -> str:
        """Return the progress of training as a short text, from the metrics of a report."""
        ...

    def export(
        self,
        pipeline: Pipeline,
        installation: Installation,
        snapshot: Snapshot,
        trained: Trained[Any],
        folder: Path,
    ) -> Export:
        """Return the export of the trained model into an empty folder."""
        ...

    def save_model(
        self, model: Model, folder: Path, files: Mapping[str, Path], evidence: Mapping[str, Path]
    ) -> None:
        """Write a model's folder in MLflow's format, if possible for MLflow's own tools too.

        Args:
            model: MLflow's description of the model, which is completed and written too.
            folder: path of the new folder.
            files: the model's files, by name.
            evidence: the evidence files, by name.
        """
        ...

    def draw_training(self, trained: Trained[Any]) -> Mapping[str, Draw]:
        """Return what draws the pictures of the training, by artifact path."""
        ...

    def draw_export(
        self, export: Any, candidates: Sequence[Any], chosen: Any
    ) -> Mapping[str, Draw]:
        """Return what draws the pictures of the export, by artifact path.

        Args:
            export: the export that made the candidates.
            candidates: the measured candidates.
            chosen: the candidate to register.
        """
        ...

    def report(
        self, pipeline: Pipeline, snapshot: Snapshot, trained: Trained[Any], exported: Exported
    ) -> KindReport:
        """Return the kind's report on a training run."""
        ...

    def evidence(self, package: Package, installation: Installation) -> VersionEvidence:
        """Return the evidence that a release needs about a version."""
        ...

    def certify(
        self, installation: Installation, client: TritonClient, package: Package
    ) -> LiveCertificate:
        """Check the live version's answers against its certificate, and measure its files again.

        Raises:
            InputError: the snapshot differs from the certified one.
            TransientError: Triton does not answer.
            WorkError: the model does not answer.
        """
        ...

    def measure_speed(self, package: Package, installation: Installation) -> Speed | None:
        """Measure the speed of a version's files on this machine, as its export did.

        Return None if these files are served by an engine that is not measured here.

        Raises:
            MillraceError: the files cannot be read or run.
        """
        ...

    def predict(self, client: TritonClient, package: Package, question: Question) -> Answer:
        """Send a question to the live version.

        Raises:
            InputError: the model does not accept such a question.
            TransientError: Triton cannot be reached, or is too busy.
        """
        ...

    def load_rows(self, package: Package) -> Mapping[str, Any]:
        """Return rows for a load generator, by input; a request has one or more of them.

        Raises:
            InputError: the model streams its answers.
        """
        ...

    def batch_job(
        self,
        pipeline: Pipeline,
        package: Package,
        installation: Installation,
        dataset_columns: tuple[Column, ...],
    ) -> ScoringJob:
        """Return the batch job that scores rows with a version.

        Args:
            pipeline: the pipeline with the batch settings.
            package: the version's files.
            installation: the installation; Ray must be connected.
            dataset_columns: the columns with their types in the dataset; empty if there is no
                dataset.

        Raises:
            InputError: Ray lacks resources that the job needs.
        """
        ...

    def with_bins(self, job: Any, snapshot: Snapshot) -> Any:
        """Return the job with the distributions of the version's training data.

        Raises:
            OSError: the snapshot's rows cannot be read.
        """
        ...

    def live_sample(self, job: Any) -> LiveSample:
        """Return the sample of rows to compare with the live model."""
        ...

    def live_model(
        self, job: Any, package: Package, installation: Installation, client: TritonClient
    ) -> tuple[Live, float]:
        """Return the live model, and the share of its answers that may differ by chance."""
        ...


class _Steps:
    """The steps of one kind; each is imported when it is first used."""

    def __init__(self, kind: ModelKind) -> None:
        self._functions = kind.steps

    def __getattr__(self, step: str) -> Any:
        return load_object(self._functions[step])


def steps_of(kind: ModelKind) -> KindSteps:
    """Return the steps of a kind."""
    return cast(KindSteps, _Steps(kind))
