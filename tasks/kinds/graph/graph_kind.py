"""The kind `graph`: one ONNX file that answers rows with one tensor."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from millrace.models.common.digest import GRAPH
from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import ColumnSpec, DatasetSpec
from millrace.models.config.export_spec import GraphForm
from millrace.models.config.model_kind import ModelKind, is_set
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.spec import Spec

if TYPE_CHECKING:
    from millrace.serving.triton.graph.triton_graph import TritonGraph
    from millrace.tasks.kinds.graph.graph_steps import GraphSteps

WITHOUT_TOKENS = ("mlp", "cnn")


class GraphKind(ModelKind):
    """Numbers, categories, images or a text in; a class or a number out."""

    name = "graph"
    families: tuple[str, ...] = (*WITHOUT_TOKENS, "text_classifier")
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
            "max_queue_delay_microseconds",
            "accelerator",
            "intra_op_thread_count",
        ),
    }
    variants = get_args(GraphForm)
    default_variants = ()
    rollouts = ("direct", "canary", "shadow")
    gates = ("export.max_metric_loss", "export.max_size_mib", "serving.latency_slo_ms")
    evidence_files = ("encoding.json", "certificate.json", "golden.npz", "pipeline.yaml")
    model_folder = ""
    model_files = (GRAPH,)

    def trains(self, family: str) -> bool:
        """Return whether a family is one of its own, or a class of the user's."""
        return family in self.families or ":" in family

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Refuse a text that is to be continued."""
        if not spec.continued:
            return
        declared = spec.columns.get(spec.target, ColumnSpec()).type
        raise InputError(
            f"the family {family!r} does not continue a text",
            seen=f"dataset.target {spec.target}: {declared or 'text'}, "
            + ("dataset.features: []" if spec.features == () else "to be answered"),
            valid="model.family: causal_lm",
            hint="or name columns to learn from in dataset.features, and a target that is a number "
            "or a category",
        )

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield what belongs to models that read tokens or start from a registered version."""
        if is_model_uri(getattr(parts["model"], "pretrained", None)):
            yield f"model.pretrained: a registered version does not go with the family {family}"
        if family in WITHOUT_TOKENS and is_set(parts["batch"], "max_num_batched_tokens"):
            yield f"batch.max_num_batched_tokens: a model of the family {family} reads no tokens"

    @property
    def triton(self) -> "TritonGraph":
        """Served by the ONNX Runtime backends."""
        from millrace.serving.triton.graph.triton_graph import TritonGraph

        return TritonGraph()

    @property
    def steps(self) -> "GraphSteps":
        """Trained by PyTorch, exported to ONNX."""
        from millrace.tasks.kinds.graph.graph_steps import GraphSteps

        return GraphSteps()
