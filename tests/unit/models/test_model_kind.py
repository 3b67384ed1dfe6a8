"""Kinds of models: what each says of a pipeline file, and which is meant."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from millrace.models.common.errors import InputError
from millrace.models.config.language_spec import DEFAULT_VARIANTS
from millrace.models.config.model_kind import (
    FIRST_KIND,
    KINDS,
    all_families,
    all_kinds,
    find_misfits,
    kind_named,
    kind_of_family,
    with_default_variants,
)
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml


def pipeline(family: str, **parts: Any) -> Pipeline:
    values = {"name": "m", "dataset": {"source": "r.csv", "target": "y"}, **parts}
    return Pipeline.model_validate(
        {**values, "model": {"family": family, **parts.get("model", {})}}
    )


def test_a_language_model_has_forms_of_its_own() -> None:
    assert pipeline("causal_lm").export.candidates == DEFAULT_VARIANTS
    assert pipeline("mlp").export.candidates[0] == "onnx-fp32"


def test_its_forms_are_what_the_file_says() -> None:
    named = pipeline("causal_lm", export={"candidates": ["openvino-int4"]})
    assert named.export.candidates == ("openvino-int4",)


@pytest.mark.parametrize(
    ("family", "part", "values", "told"),
    [
        ("mlp", "model", {"lora": {}}, "model.lora"),
        ("mlp", "training", {"parallel": "fsdp"}, "training.parallel"),
        ("mlp", "export", {"max_perplexity_increase": 0.5}, "export.max_perplexity_increase"),
        ("mlp", "export", {"group_size": 32}, "export.group_size"),
        ("text_classifier", "export", {"ratio": 0.8}, "export.ratio"),
        ("mlp", "training", {"log_steps": 1}, "training.log_steps"),
        ("mlp", "serving", {"generation": {"max_num_seqs": 2}}, "serving.generation"),
        ("mlp", "batch", {"prompt": "text"}, "batch.prompt"),
        ("cnn", "batch", {"max_num_batched_tokens": 64}, "batch.max_num_batched_tokens"),
        ("mlp", "export", {"candidates": ["openvino-int8"]}, "has no variant openvino-int8"),
        ("causal_lm", "training", {"pruning": {}}, "training.pruning"),
        ("mlp", "training", {"optimizer": "muon"}, "training.optimizer"),
        ("causal_lm", "training", {"optimizer": "muon", "parallel": "tp"}, "whole weight matrices"),
        ("causal_lm", "rollout", {"kind": "canary"}, "rollout.kind: canary"),
        ("causal_lm", "export", {"candidates": ["onnx-fp32"]}, "has no variant onnx-fp32"),
        ("causal_lm", "serving", {"max_batch_size": 8}, "serving.max_batch_size"),
    ],
)
def test_a_key_of_another_family_is_told(
    family: str, part: str, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        pipeline(family, **{part: values})


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [("export", "group_size", 48), ("export", "ratio", 0.0), ("training", "log_steps", 0)],
)
def test_what_is_out_of_range_is_told(part: str, key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=f"{part}.{key}"):
        pipeline("causal_lm", **{part: {key: value}})


@pytest.mark.parametrize("family", ["mlp", "causal_lm"])
def test_a_resolved_file_is_a_file_again(family: str) -> None:
    made = pipeline(family)
    assert Pipeline.model_validate(yaml.safe_load(resolved_yaml(made))) == made


@pytest.mark.parametrize("key", ["seconds", "memory_gib"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300])
def test_a_limit_is_a_finite_number(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=f"export.limits.{key}"):
        pipeline("mlp", export={"limits": {key: value}})


def test_a_family_that_is_none_is_said_and_not_what_does_not_go_with_it() -> None:
    assert next(find_misfits("causal-lm", {}), None) is None


def test_a_kind_is_known_by_its_name() -> None:
    assert [kind.name for kind in all_kinds()] == list(KINDS)
    assert all(kind_named(kind.name) is kind for kind in all_kinds())
    with pytest.raises(InputError, match="not know the model kind 'video'") as told:
        kind_named("video")
    assert told.value.valid == ", ".join(KINDS)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, "graph") for family in ("mlp", "cnn", "text_classifier", "mine:Net")),
        ("causal_lm", "language"),
        ("no-such-family", "graph"),
    ],
)
def test_a_family_is_of_one_kind(family: str, kind: str) -> None:
    assert kind_of_family(family).name == kind
    assert sum(each.trains(family) for each in all_kinds()) == (family != "no-such-family")


def test_every_family_is_of_a_kind() -> None:
    assert all(kind_of_family(family).trains(family) for family in all_families())
    assert FIRST_KIND == "graph"


@pytest.mark.parametrize("kind", all_kinds(), ids=lambda kind: kind.name)
def test_a_kind_has_its_steps_its_backend_and_its_evidence(kind: Any) -> None:
    assert {"certificate.json", "pipeline.yaml"} <= set(kind.evidence_files)
    assert set(kind.default_variants) <= set(kind.variants)
    assert "direct" in kind.rollouts
    for gate in kind.gates:
        part, _, key = gate.partition(".")
        assert key in type(getattr(pipeline(kind.families[0]), part)).model_fields


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": None, "export": None},
        {"model": {"family": "mlp"}},
        {"model": {"family": 3}},
        {"model": "causal_lm"},
        {"model": {"family": "causal_lm"}, "export": ["openvino-int8"]},
        {"model": {"family": "causal_lm"}, "export": {"candidates": None}},
    ],
)
def test_variants_are_put_into_no_file_that_names_them_or_is_wrong(values: dict[str, Any]) -> None:
    assert with_default_variants(values) == values


@pytest.mark.parametrize("export", [{}, {"export": None}, {"export": {"ratio": 0.5}}])
def test_variants_are_those_of_the_kind_where_a_file_names_none(export: dict[str, Any]) -> None:
    found = with_default_variants({"model": {"family": "causal_lm"}, **export})
    assert found["export"]["candidates"] == DEFAULT_VARIANTS
    assert found["export"].get("ratio") == (export.get("export") or {}).get("ratio")
