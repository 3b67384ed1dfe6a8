from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.compression_spec import DistillationSpec
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.training_spec import ModelSpec, TrainingSpec
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.tasks.kinds.graph import graph_references
from millrace.tasks.kinds.graph.graph_references import reference_of, registered, teacher_of
from millrace.tasks.kinds.language import draft_model
from millrace.tasks.kinds.steps import steps_of

ENCODING = Encoding((Feature("x", "number", mean=1.0),), "y", ("no", "yes"))


@dataclass
class FakeRegistry:
    """Versions 1 and 2 of `digits`; 2 is the champion, 1 is called old."""

    file: Path
    encoding: Encoding = ENCODING
    aliases: dict[str, int] = field(default_factory=lambda: {"champion": 2, "old": 1})

    def by_alias(self, model: str, alias: str) -> ModelVersion | None:
        number = self.aliases.get(alias) if model == "digits" else None
        return self.version(model, number) if number else None

    def champions(self) -> dict[str, ModelVersion]:
        return {"digits": self.version("digits", 2)}

    def version(self, model: str, number: int) -> ModelVersion:
        return ModelVersion(model, number, "d", "r")

    def fetch(self, version: ModelVersion) -> Package:
        (self.file.parent / "encoding.json").write_text(self.encoding.to_json())
        return Package(version, {"model.onnx": self.file}, self.file.parent)


@pytest.fixture
def registry(tmp_path: Path) -> Any:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"graph")
    return FakeRegistry(file)


@pytest.mark.parametrize(
    ("name", "version"), [("digits", 2), ("digits@old", 1), ("digits/1", 1), ("digits/7", 7)]
)
def test_a_version_is_found_by_name_alias_or_number(registry: Any, name: str, version: int) -> None:
    assert registered(name, registry, ENCODING).version.version == version


@pytest.mark.parametrize("name", ["other", "digits@challenger"])
def test_a_version_that_is_not_there_is_told(registry: Any, name: str) -> None:
    with pytest.raises(InputError, match="there is no registered version") as caught:
        registered(name, registry, ENCODING)
    assert name in caught.value.what
    assert "champion: digits" in str(caught.value.valid)


PLACES = Installation(Path("home"), "sqlite://", "/tables")


def pinned(pipeline: Pipeline) -> Pipeline:
    kind = kind_of_family(pipeline.model.family)
    return steps_of(kind).pin_versions(pipeline, PLACES)


def test_what_a_pipeline_names_is_looked_for_before_it_is_needed(
    registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_references, "registry_of", lambda installation: registry)
    there = DistillationSpec(teacher="digits")
    for training in (TrainingSpec(), TrainingSpec(distillation=there, compare="digits/1")):
        assert pinned(pipeline(training)) == pipeline(training)
    for training in (
        TrainingSpec(distillation=there, compare="nobody@old"),
        TrainingSpec(distillation=DistillationSpec(teacher="nobody@old"), compare="digits"),
    ):
        with pytest.raises(InputError, match="'nobody@old'"):
            pinned(pipeline(training))


@pytest.mark.parametrize(
    ("training", "model", "draft", "names"),
    [
        (TrainingSpec(), {}, None, False),
        (TrainingSpec(compare="digits"), {}, None, True),
        (TrainingSpec(distillation=DistillationSpec(teacher="digits")), {}, None, True),
        (TrainingSpec(), {"family": "causal_lm"}, None, False),
        (TrainingSpec(), {"family": "causal_lm", "pretrained": "org/name"}, None, False),
        (TrainingSpec(), {"family": "causal_lm", "pretrained": "models:/lm/1"}, None, True),
        (TrainingSpec(), {"family": "causal_lm"}, "small", True),
    ],
)
def test_a_registry_is_asked_only_where_a_version_is_named(
    monkeypatch: pytest.MonkeyPatch,
    training: TrainingSpec,
    model: dict[str, str],
    draft: str | None,
    names: bool,
) -> None:
    class Asked(Exception):
        """The registry was asked."""

    def ask(*_: object) -> None:
        raise Asked

    monkeypatch.setattr(draft_model, "registry_of", lambda installation: AskedRegistry(ask))
    monkeypatch.setattr(graph_references, "registry_of", lambda installation: AskedRegistry(ask))
    given = pipeline(training, **model).with_generation(GenerationSpec(draft=draft))
    assert steps_of(kind_of_family(given.model.family)).names_versions(given) is names
    if not names:
        assert pinned(given) is given
        return
    with pytest.raises(Asked):
        pinned(given)


class AskedRegistry:
    """Whatever is asked of it is a call."""

    def __init__(self, ask: Any) -> None:
        self.by_alias = self.version = self.champions = ask


def pipeline(training: TrainingSpec, **model: Any) -> Pipeline:
    dataset = DatasetSpec(source="r.csv", target="t")
    return Pipeline.model_construct(
        name="p",
        dataset=dataset,
        model=ModelSpec(**model),
        training=training,
        serving=ServingSpec(),
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(ENCODING, features=(Feature("z", "number"),)),
        replace(ENCODING, features=(Feature("x", "vector", width=2),)),
        replace(ENCODING, labels=("no", "yes", "maybe")),
        replace(ENCODING, labels=("yes", "no")),
        replace(ENCODING, labels=()),
        replace(ENCODING, target="z"),
    ],
)
def test_a_version_that_answers_another_question_is_refused(registry: Any, other: Encoding) -> None:
    registry.encoding = other
    with pytest.raises(InputError, match="digits version 2 has other columns"):
        registered("digits", registry, ENCODING)


def test_other_means_of_the_same_columns_are_no_other_question(registry: Any) -> None:
    registry.encoding = replace(ENCODING, features=(Feature("x", "number", mean=9.0, std=3.0),))
    assert registered("digits", registry, ENCODING).version.version == 2


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (TrainingSpec(), None),
        (TrainingSpec(compare="digits@old"), 1),
        (TrainingSpec(distillation=DistillationSpec(teacher="digits")), 2),
        (TrainingSpec(distillation=DistillationSpec(teacher="digits"), compare="digits/1"), 1),
    ],
)
def test_a_model_is_shown_beside_what_is_named_else_its_teacher(
    registry: Any, spec: TrainingSpec, version: int | None
) -> None:
    found = reference_of(spec, registry, ENCODING)
    assert (found and found.version.version) == version


def test_a_teacher_travels_as_its_graph(registry: Any) -> None:
    spec = DistillationSpec(teacher="digits", temperature=3.0, weight=0.9)
    teacher = teacher_of(spec, registry, ENCODING)
    assert (teacher.name, teacher.model) == ("digits version 2", b"graph")
    assert (teacher.temperature, teacher.weight) == (3.0, 0.9)
