"""The kind `gradient_boosting`: trees by XGBoost, which are served as an ONNX model."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.models.config import Spec
from millrace.models.config.model_kind import is_set, require_extras
from millrace.models.config.training_spec import ModelSpec
from millrace.tasks.kinds.gradient_boosting.boosting_params import check_params
from millrace.tasks.kinds.graph.graph_kind import GraphKind

HERE = "millrace.tasks.kinds.gradient_boosting"
OF_NETWORKS = (
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "precision",
)
"""Keys of `training` that do not exist for boosted trees."""


class BoostingKind(GraphKind):
    """Models with numbers, categories and vectors in; a class or a number out.

    Everything except training, export and report is inherited from the kind `graph`.
    """

    name = "gradient_boosting"
    families = ("gradient_boosting",)
    keys: Mapping[str, tuple[str, ...]] = {
        "training": ("compare",),
        "export": ("max_metric_loss",),
        "serving": GraphKind.keys["serving"],
    }
    variants = ("onnx-fp32",)
    default_variants = ("onnx-fp32",)
    steps: Mapping[str, str] = {
        **GraphKind.steps,
        "plan": f"{HERE}.boosting_plan:plan_trees",
        "prepare": f"{HERE}.boosting_train:prepare_trees",
        "describe_progress": f"{HERE}.boosting_train:describe_rounds",
        "export": f"{HERE}.boosting_export:export_trees",
        "draw_training": f"{HERE}.boosting_report:draw_trees",
        "report": f"{HERE}.boosting_report:report_trees",
    }

    folders = ("tasks/kinds/gradient_boosting",)

    def trains(self, family: str) -> bool:
        """Return whether a family belongs to this kind."""
        return family in self.families

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """Refuse a model whose packages are not installed, or whose params are not valid."""
        require_extras(spec.family, "boosting")
        check_params(spec.params)

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield a message for each key that only neural networks have."""
        yield from super().find_misfits(family, parts)
        for key in OF_NETWORKS:
            if is_set(parts["training"], key):
                yield (
                    f"training.{key} is not supported for the family {family}; set "
                    "XGBoost's parameters, such as n_estimators and learning_rate, in model.params"
                )
        if is_set(parts["model"], "pretrained"):
            yield f"model.pretrained is not supported for the family {family}"
