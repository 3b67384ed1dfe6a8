"""The evidence that a release needs about a `graph` version."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from millrace.export.onnx.graph_certificate import GraphCertificate, GraphStage
from millrace.models.common.hardware import this_fingerprint, this_machine
from millrace.models.common.installation import Installation
from millrace.models.comparison.paired_scores import PairedScores
from millrace.models.data.snapshots import open_snapshot
from millrace.models.inference.answers import answers_of
from millrace.models.inference.named_columns import columns_json
from millrace.models.registry.version_files import Package
from millrace.serving.release.golden_batch import GoldenBatch
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.kinds.certified import (
    certificate_of,
    figures_of,
    pipeline_of,
)
from millrace.tasks.kinds.graph.graph_files import GraphFiles, graph_files
from millrace.tasks.kinds.graph.graph_report import describe_version
from millrace.tasks.kinds.graph.graph_rows import metric_of, paired_scores
from millrace.tasks.kinds.steps import Measured


@dataclass(frozen=True)
class GraphEvidence:
    """A version that is one ONNX file; a `VersionEvidence`.

    Attributes:
        files: the version's files.
        installation: the installation with the snapshots.
    """

    files: GraphFiles
    installation: Installation
    compares_quickly: ClassVar[bool] = True

    def artifact(self) -> Artifact:
        """Return the artifact that a release copies into Triton's model repository."""
        encoding = self.files.encoding
        labels = tuple(str(label) for label in encoding.labels)
        tokenizer = encoding.tokenizer.json if encoding.tokenizer else None
        pipeline = pipeline_of(self.files.package)
        serving, key = pipeline.serving, pipeline.batch.key or pipeline.dataset.key
        digest = self.files.version.digest
        return artifact_of_graph(
            *(self.files.model, digest, labels, serving, tokenizer),
            rules=encoding.rules(),
            kind=self.files.version.kind.name,
            columns=columns_json(encoding, key),
        )

    def expected(self) -> GoldenBatch:
        """Return the golden batch with the answers and the difference that were certified."""
        files = self.files
        features, answers = files.golden()
        certificate = certificate_of(files.package, GraphCertificate)
        return GoldenBatch(
            inputs=files.golden_request(),
            graph_inputs={files.encoding.input.name: files.encoding.input.trimmed(features)},
            answers={answers_of(files.encoding).output: answers},
            difference=certificate.golden_difference,
            latency_slo_ms=pipeline_of(files.package).serving.latency_slo_ms,
            caution="; ".join(filter(None, (files.package.untrusted, _caution(certificate)))),
        )

    def measured(self) -> Measured:
        """Return the version's certified metric, and whether it passed its gates."""
        certificate = certificate_of(self.files.package, GraphCertificate)
        chosen = certificate.chosen
        return Measured(
            certificate.passed and certificate.digest == self.files.version.digest,
            chosen.metric if chosen else None,
            certificate.metric_name,
            figures=figures_of(certificate),
            rows=certificate.test_rows,
        )

    def metric_of(self, other: Package) -> float | None:
        """Return another version's metric on the test split that this version was certified on."""
        certificate = certificate_of(self.files.package, GraphCertificate)
        snapshot = open_snapshot(
            self.installation, certificate.dataset, certificate.dataset_version
        )
        pipeline = pipeline_of(self.files.package)
        return metric_of(graph_files(other), pipeline, snapshot, certificate.metric_name)

    def paired_scores(self, other: Package, columns: Sequence[str] | None) -> PairedScores | None:
        """Return the scores of another version and of this one on this one's test split."""
        certificate = certificate_of(self.files.package, GraphCertificate)
        snapshot = open_snapshot(
            self.installation, certificate.dataset, certificate.dataset_version
        )
        pipeline = pipeline_of(self.files.package)
        return paired_scores(graph_files(other), self.files, pipeline, snapshot, columns)

    def describe(self, difference: float | None) -> tuple[str, str]:
        """Return the stages as a Markdown table, and the certificate as JSON."""
        certificate = certificate_of(self.files.package, GraphCertificate)
        if difference is not None:
            certificate = certificate.with_stage(GraphStage("triton", difference))
        return describe_version(certificate), certificate.to_json()


def graph_evidence(package: Package, installation: Installation) -> GraphEvidence:
    """Return the evidence that a release needs about a version."""
    return GraphEvidence(graph_files(package), installation)


def _caution(certificate: GraphCertificate) -> str:
    """Return a warning if the variant was chosen on another kind of machine; empty if not."""
    chosen, here = certificate.chosen, this_machine().kind
    if chosen and chosen.ties and chosen.ties != (ties := str(this_fingerprint() or here)):
        return f"it was certified with {chosen.ties}; this machine has {ties}"
    if certificate.machine_kind in ("", here):
        return ""
    return f"its variant was chosen on {certificate.machine}; this machine has {here}"
