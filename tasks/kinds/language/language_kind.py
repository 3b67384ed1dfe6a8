"""The kind `language`: decoder-only models that continue a text, answer a prompt or a chat."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.export.language.language_variants import LANGUAGE_VARIANTS
from millrace.models.common.errors import InputError
from millrace.models.config import Spec
from millrace.models.config.dataset_spec import TEXTS, ColumnSpec, DatasetSpec
from millrace.models.config.language_spec import DEFAULT_VARIANTS
from millrace.models.config.model_kind import ModelKind, require_extras, slo_misfits
from millrace.models.config.training_spec import ModelSpec

HERE = "millrace.tasks.kinds.language"
PROMPT_HINT = "dataset.features: [] trains on the target alone, [prompt] on prompt and answer"


class LanguageKind(ModelKind):
    """Models with a text in and its continuation out, token by token."""

    name = "language"
    families = ("causal_lm",)
    keys: Mapping[str, tuple[str, ...]] = {
        "model": ("lora",),
        "training": (
            "optimizer",
            "max_steps",
            "gradient_accumulation_steps",
            "gradient_checkpointing",
            "warmup_ratio",
            "parallel",
            "checkpoint_steps",
            "log_steps",
        ),
        "export": ("max_perplexity_increase", "group_size", "ratio"),
        "serving": ("generation",),
        "batch": ("prompt", "sampling"),
    }
    variants = tuple(LANGUAGE_VARIANTS)
    default_variants = DEFAULT_VARIANTS
    rollouts = ("direct",)
    gates = ("export.max_perplexity_increase", "export.max_size_mib")
    evidence_files = ("certificate.json", "golden.json", "pipeline.yaml")
    model_folder = "form"
    model_files = ()
    triton = "millrace.serving.triton.language.triton_language:TritonLanguage"
    derived_tables = ("tokens", "tokenizers")
    steps: Mapping[str, str] = {
        "names_versions": f"{HERE}.draft_model:names_base_or_draft",
        "pin_versions": f"{HERE}.draft_model:pin_base_and_draft",
        "plan": f"{HERE}.language_plan:plan_decoder",
        "prepare": f"{HERE}.language_train:prepare_decoder",
        "describe_progress": f"{HERE}.language_train:describe_steps",
        "export": f"{HERE}.language_export:export_language",
        "save_model": f"{HERE}.language_files:save_language_model",
        "draw_training": f"{HERE}.language_report:draw_training",
        "draw_export": f"{HERE}.language_report:draw_export",
        "report": f"{HERE}.language_report:report_language",
        "evidence": f"{HERE}.language_evidence:language_evidence",
        "certify": f"{HERE}.language_certify:certify_language",
        "measure_speed": f"{HERE}.language_certify:measure_language_speed",
        "predict": f"{HERE}.language_predict:predict_text",
        "load_rows": f"{HERE}.language_predict:golden_texts",
        "batch_job": f"{HERE}.language_batch:prompt_job",
        "with_bins": f"{HERE}.language_batch:with_prompt_bins",
        "live_sample": f"{HERE}.language_batch:sample_prompts",
        "live_model": f"{HERE}.language_batch:live_prompts",
    }

    folders = (
        "tasks/kinds/language",
        "export/language",
        "export/openvino",
        "export/vllm",
        "flows/cli/api_keys.py",
        "models/common/language_generation.py",
        "models/config/language_spec.py",
        "models/inference/language_engine.py",
        "models/language",
        "serving/batch/prompts",
        "serving/openai_api",
        "serving/release/golden_prompts.py",
        "serving/triton/backends/openvino_genai",
        "serving/triton/language",
    )

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Refuse a dataset whose target is not a text."""
        declared = spec.columns.get(spec.target, ColumnSpec()).type
        if not spec.continued:
            raise InputError(
                f"the family {family!r} generates text, but dataset.target {spec.target!r} is "
                "not declared as text",
                seen=declared or "no type",
                valid=", ".join(TEXTS),
                hint=f"set dataset.columns: {{{spec.target}: {{type: text}}}}; {PROMPT_HINT}",
            )
        if declared not in (None, *TEXTS):
            raise InputError(
                f"the family {family!r} generates text, but dataset.target {spec.target!r} is "
                "not text",
                seen=declared,
                valid=", ".join(TEXTS),
                hint="choose another dataset.target, or fix its type in dataset.columns",
            )
        _require_one_prompt(spec, declared)

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """Refuse a model whose packages are not installed."""
        require_extras(spec.family, "language", "text")

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield a message for a goal or an optimizer that does not suit the model."""
        yield from slo_misfits(family, parts["serving"], is_streamed=True)
        training = parts["training"]
        sharded = getattr(training, "parallel", "") != "ddp"
        if getattr(training, "optimizer", "") == "muon" and sharded:
            yield (
                "training.optimizer: muon needs whole weight matrices on every worker; "
                "set training.parallel: ddp"
            )


def _require_one_prompt(spec: DatasetSpec, declared: str | None) -> None:
    most = 0 if declared == "messages" else 1
    if spec.features is None or len(spec.features) > most:
        raise InputError(
            "a dataset of chats needs no prompt column: its messages contain the prompts already"
            if spec.features and most == 0
            else "a language model is trained on one text, or on a prompt and its answer",
            seen="dataset.features: "
            + ("left out" if spec.features is None else ", ".join(spec.features)),
            valid="dataset.features: []" + (" or one column" if most else ""),
            hint=PROMPT_HINT if most else "write dataset.features: []",
        )
