"""What a graph answers at each step of the line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millrace.tasks.kinds.steps import KindSteps

if TYPE_CHECKING:
    from pathlib import Path

    from millrace.models.common.installation import Installation
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.data.schema import Column
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import Package
    from millrace.serving.batch.monitoring.live_model import LiveRows
    from millrace.serving.batch.row_job import RowJob
    from millrace.serving.triton.client import TritonClient
    from millrace.tasks.kinds.graph.graph_certify import LiveGraph
    from millrace.tasks.kinds.graph.graph_evidence import GraphEvidence
    from millrace.tasks.kinds.graph.graph_export import GraphExport
    from millrace.tasks.kinds.graph.graph_predict import LiveAnswer
    from millrace.tasks.kinds.graph.graph_train import GraphTraining
    from millrace.tasks.kinds.steps import (
        Exported,
        KindReport,
        LiveSample,
        Prepared,
        Question,
        Trained,
    )


class GraphSteps(KindSteps):
    """The steps of a graph; each is imported when it is taken."""

    def pin_versions(self, pipeline: Pipeline, places: Installation) -> Pipeline:
        """Look for the teacher and the version to compare with, before time is spent."""
        from millrace.tasks.kinds.graph.graph_references import check_references

        check_references(pipeline.training, places)
        return pipeline

    def prepare(
        self, pipeline: Pipeline, places: Installation, snapshot: Snapshot, run: TrackedRun
    ) -> Prepared[GraphTraining]:
        """Fit the encoding, and build the network once."""
        from millrace.tasks.kinds.graph.graph_train import prepare_network

        return prepare_network(pipeline, places, snapshot)

    def describe_progress(self, metrics: Mapping[str, Any]) -> str:
        """Return validation metrics and throughput."""
        from millrace.tasks.kinds.graph.graph_train import describe_epoch

        return describe_epoch(metrics)

    def export(
        self,
        pipeline: Pipeline,
        places: Installation,
        snapshot: Snapshot,
        trained: Trained[GraphTraining],
        folder: Path,
    ) -> GraphExport:
        """Export to ONNX."""
        from millrace.tasks.kinds.graph.graph_export import export_of

        return export_of(pipeline, places, snapshot, trained, folder)

    def log_model(
        self, run: TrackedRun, files: Mapping[str, Path], evidence: Mapping[str, Path]
    ) -> Any:
        """Log the model's files to a run."""
        from millrace.tasks.kinds.graph.graph_files import log_graph

        return log_graph(run, files, evidence)

    def report(
        self,
        pipeline: Pipeline,
        snapshot: Snapshot,
        trained: Trained[GraphTraining],
        exported: Exported,
    ) -> KindReport:
        """Return tables and pictures of a run."""
        from millrace.tasks.kinds.graph.graph_report import report_graph

        return report_graph(pipeline, snapshot, trained, exported)

    def evidence(self, package: Package, places: Installation) -> GraphEvidence:
        """Return a version's files as a release needs them."""
        from millrace.tasks.kinds.graph.graph_evidence import GraphEvidence
        from millrace.tasks.kinds.graph.graph_files import graph_files

        return GraphEvidence(graph_files(package), places)

    def certify(self, places: Installation, client: TritonClient, package: Package) -> LiveGraph:
        """Ask the live version the golden batch and the test split."""
        from millrace.tasks.kinds.graph.graph_certify import certify_graph
        from millrace.tasks.kinds.graph.graph_files import graph_files

        return certify_graph(places, client, graph_files(package))

    def predict(self, client: TritonClient, package: Package, question: Question) -> LiveAnswer:
        """Send rows to the live version."""
        from millrace.tasks.kinds.graph.graph_files import graph_files
        from millrace.tasks.kinds.graph.graph_predict import predict_rows

        return predict_rows(client, graph_files(package), question)

    def load_request(self, package: Package) -> Mapping[str, Any]:
        """Return one golden row."""
        from millrace.tasks.kinds.graph.graph_files import graph_files

        golden = graph_files(package).golden_request()
        return {name: rows[:1] for name, rows in golden.items()}

    def batch_job(
        self, pipeline: Pipeline, package: Package, places: Installation, held: tuple[Column, ...]
    ) -> RowJob:
        """Return what scores rows."""
        from millrace.tasks.kinds.graph.graph_batch import row_job
        from millrace.tasks.kinds.graph.graph_files import graph_files

        return row_job(pipeline, graph_files(package), held)

    def with_bins(self, job: Any, snapshot: Snapshot) -> RowJob:
        """Return the job with the bins of features and predictions."""
        from millrace.tasks.kinds.graph.graph_batch import with_row_bins

        return with_row_bins(job, snapshot)

    def live_sample(self, job: Any) -> LiveSample:
        """Return how many rows are asked of the live model."""
        from millrace.tasks.kinds.graph.graph_batch import SAMPLE

        return SAMPLE

    def live_model(
        self, job: Any, package: Package, places: Installation, client: TritonClient
    ) -> tuple[LiveRows, float]:
        """Return the live model; of its answers none may differ by chance."""
        from millrace.tasks.kinds.graph.graph_batch import live_rows
        from millrace.tasks.kinds.graph.graph_files import graph_files

        return live_rows(job, graph_files(package), places, client), 0.0
