"""A graph's files as a release needs them."""

from dataclasses import dataclass

from millrace.export.certificate import Certificate, Stage
from millrace.models.common.hardware import this_fingerprint, this_machine
from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import open_snapshot
from millrace.models.inference.answers import answers_of
from millrace.models.registry.version_files import GraphPackage, Package
from millrace.serving.release.golden_batch import GoldenBatch
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.compare import metric_of
from millrace.tasks.reports.run_report import certificate_table
from millrace.tasks.version_documents import certificate_of, pipeline_of
from millrace.tasks.version_evidence import Measured


@dataclass(frozen=True)
class GraphEvidence:
    """A version that is one ONNX file; a `VersionEvidence`.

    Attributes:
        package: its files.
        places: where snapshots are.
    """

    package: GraphPackage
    places: Installation

    def artifact(self) -> Artifact:
        """Return what is staged."""
        encoding = self.package.encoding
        labels = tuple(str(label) for label in encoding.labels)
        tokenizer = encoding.tokenizer.json if encoding.tokenizer else None
        serving = pipeline_of(self.package).serving
        digest = self.package.version.digest
        rules = encoding.rules()
        return Artifact.of_graph(self.package.model, digest, labels, serving, tokenizer, rules)

    def expected(self) -> GoldenBatch:
        """Return its golden batch, and what was certified of it."""
        package = self.package
        features, answers = package.golden()
        certificate = certificate_of(package)
        chosen = certificate.stage(certificate.candidate)
        return GoldenBatch(
            inputs=package.golden_request(),
            graph_inputs={package.encoding.input.name: package.encoding.input.trimmed(features)},
            answers={answers_of(package.encoding).output: answers},
            difference=chosen.golden_difference if chosen else 0.0,
            latency_slo_ms=pipeline_of(package).serving.latency_slo_ms,
            caution="; ".join(filter(None, (package.untrusted, _caution(certificate)))),
        )

    def measured(self) -> Measured:
        """Return what it was certified with."""
        certificate = certificate_of(self.package)
        chosen = certificate.stage(certificate.candidate)
        return Measured(
            certificate.passed and certificate.digest == self.package.version.digest,
            chosen.metric if chosen else None,
            certificate.metric_name,
        )

    def metric_of(self, other: Package) -> float | None:
        """Return another version's metric on the test split that this one was certified on."""
        certificate = certificate_of(self.package)
        snapshot = open_snapshot(self.places, certificate.dataset, certificate.dataset_version)
        pipeline = pipeline_of(self.package)
        return metric_of(other.graph, pipeline, snapshot, certificate.metric_name)

    def told(self, difference: float | None) -> tuple[str, str]:
        """Return the stages as a table, and the certificate."""
        certificate = certificate_of(self.package)
        if difference is not None:
            certificate = certificate.with_stage(Stage("triton", difference))
        return certificate_table(certificate), certificate.to_json()


def _caution(certificate: Certificate) -> str:
    """Say so where the form was chosen on another kind of machine than serves it."""
    chosen, here = certificate.stage(certificate.candidate), this_machine().kind
    if chosen and chosen.ties and chosen.ties != (ties := str(this_fingerprint() or here)):
        return f"it was certified with {chosen.ties}; this machine has {ties}"
    if certificate.machine_kind in ("", here):
        return ""
    return f"its form was chosen on {certificate.machine}; this machine has {here}"
