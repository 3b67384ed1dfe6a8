"""The kind `graph`: models that are one ONNX file and return one tensor for rows."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.export.onnx.graph_variants import GRAPH_VARIANTS
from millrace.models.common.digest import ONNX_FILE
from millrace.models.common.errors import InputError
from millrace.models.config import Spec
from millrace.models.config.dataset_spec import ColumnSpec, DatasetSpec
from millrace.models.config.model_kind import ModelKind, is_set, require_extras, slo_misfits
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family_params import require_known_params

WITHOUT_TOKENS = ("mlp", "cnn")
OF_TEXT = "text_classifier"
HERE = "millrace.tasks.kinds.graph"


class GraphKind(ModelKind):
    """Models with numbers, categories, images or a text in; a class or a number out."""

    name = "graph"
    families: tuple[str, ...] = (*WITHOUT_TOKENS, OF_TEXT)
    keys: Mapping[str, tuple[str, ...]] = {
        "training": (
            "find_unused_parameters",
            "distillation",
            "pruning",
            "quantization_aware",
            "compare",
            "checkpoint_every",
        ),
        "export": ("max_metric_loss", "calibration_rows"),
        "serving": (
            "max_batch_size",
            "preferred_batch_size",
            "max_queue_delay_microseconds",
            "accelerator",
            "intra_op_thread_count",
        ),
    }
    variants: tuple[str, ...] = GRAPH_VARIANTS
    default_variants: tuple[str, ...] = ()
    rollouts = ("direct", "canary", "shadow")
    gates = ("export.max_metric_loss", "export.max_size_mib", "serving.latency_slo_ms")
    evidence_files = ("encoding.json", "certificate.json", "golden.npz", "pipeline.yaml")
    model_folder = ""
    model_files = (ONNX_FILE,)
    triton = "millrace.serving.triton.graph.triton_graph:TritonGraph"
    derived_tables: tuple[str, ...] = ()
    steps: Mapping[str, str] = {
        "names_versions": f"{HERE}.graph_references:names_references",
        "pin_versions": f"{HERE}.graph_references:pin_references",
        "plan": f"{HERE}.graph_plan:plan_network",
        "prepare": f"{HERE}.graph_train:prepare_network",
        "describe_progress": f"{HERE}.graph_train:describe_epoch",
        "export": f"{HERE}.graph_export:export_graph",
        "save_model": f"{HERE}.graph_files:save_graph",
        "draw_training": f"{HERE}.graph_report:draw_training",
        "draw_export": f"{HERE}.graph_report:draw_export",
        "report": f"{HERE}.graph_report:report_graph",
        "evidence": f"{HERE}.graph_evidence:graph_evidence",
        "certify": f"{HERE}.graph_certify:certify_graph",
        "measure_speed": f"{HERE}.graph_certify:measure_graph_speed",
        "predict": f"{HERE}.graph_predict:predict_rows",
        "load_rows": f"{HERE}.graph_predict:golden_rows",
        "batch_job": f"{HERE}.graph_batch:row_job",
        "with_bins": f"{HERE}.graph_batch:with_row_bins",
        "live_sample": f"{HERE}.graph_batch:sample_size",
        "live_model": f"{HERE}.graph_batch:live_rows",
    }

    folders: tuple[str, ...] = (
        "tasks/kinds/graph",
        "export/onnx",
        "export/tensorrt",
        "models/families/cnn.py",
        "models/families/count_network.py",
        "models/families/family.py",
        "models/families/family_params.py",
        "models/families/mlp.py",
        "models/families/network.py",
        "models/families/objective.py",
        "models/families/text_classifier.py",
        "models/training/compression",
        "models/training/network_job.py",
        "models/training/network_learner.py",
        "serving/batch/row_job.py",
        "serving/release/golden_batch.py",
        "serving/triton/backends/onnxruntime",
        "serving/triton/backends/text_onnxruntime",
        "serving/triton/graph",
    )

    def trains(self, family: str) -> bool:
        """Return whether a family belongs to this kind, or is a class that the user wrote."""
        return family in self.families or ":" in family

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Refuse a dataset whose target is a text to be continued."""
        if not spec.continued:
            return
        declared = spec.columns.get(spec.target, ColumnSpec()).type
        raise InputError(
            f"the family {family!r} does not generate text",
            seen=f"dataset.target {spec.target}: {declared or 'text'}, "
            + ("dataset.features: []" if spec.features == () else "a text to generate"),
            valid="model.family: causal_lm",
            hint="set model.family: causal_lm, or name the input columns in dataset.features and "
            "a target that is a number or a category",
        )

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """Refuse a model whose packages are not installed, or params that its family lacks.

        Torch is imported only for a family that the user wrote.
        """
        if spec.family == OF_TEXT:
            require_extras(spec.family, "text")
        if spec.family in self.families:
            require_known_params(spec)
        else:
            from millrace.models.families.family import family_of

            require_known_params(spec, family_of(spec, folder))

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield a message for each key that only language or text models support."""
        if is_model_uri(getattr(parts["model"], "pretrained", None)):
            yield f"model.pretrained: a registered version is not supported for the family {family}"
        yield from slo_misfits(family, parts["serving"], is_streamed=False)
        if family in WITHOUT_TOKENS and is_set(parts["batch"], "max_num_batched_tokens"):
            yield (
                f"batch.max_num_batched_tokens is not supported for the family {family}, whose "
                "models read no tokens"
            )
