"""Which version drafts for a language model: pinned by a run, brought by a release."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.version_files import KIND_TAG, ModelVersion, Package
from millrace.tasks.kinds.language import draft_model
from millrace.tasks.kinds.language.draft_model import draft_of, require_draft, with_pinned_draft
from millrace.tasks.kinds.steps import steps_of

TOKENIZER = b"{}"
CONTEXT = 64


@dataclass
class FakeRegistry:
    """Versions 1 and 2 of the language model `small`; the champion is given."""

    folder: Path
    champion: int = 1
    kind: str = "language"
    fetched: list[int] = field(default_factory=list)

    def by_alias(self, model: str, alias: str) -> ModelVersion | None:
        return self.version(model, self.champion) if (model, alias) == CHAMPION else None

    def champions(self) -> dict[str, ModelVersion]:
        return {"small": self.version("small", self.champion)}

    def version(self, model: str, number: int) -> ModelVersion:
        if model != "small" or number > 2:
            raise InputError(f"the registry has no {model} version {number}")
        digest = digest_of_all(self.files)
        return ModelVersion(model, number, digest, "run", tags={KIND_TAG: self.kind})

    def fetch(self, version: ModelVersion) -> Package:
        self.fetched.append(version.version)
        return Package(version, self.files, self.folder)

    @property
    def files(self) -> dict[str, Path]:
        return {file.name: file for file in self.folder.iterdir()}


CHAMPION = ("small", "champion")


@pytest.fixture
def registry(tmp_path: Path) -> Any:
    (tmp_path / "form").mkdir()
    (tmp_path / "form" / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "form" / "tokenizer.json").write_bytes(TOKENIZER)
    config = f'{{"vocab_size": 9, "max_position_embeddings": {CONTEXT}}}'
    (tmp_path / "form" / "config.json").write_text(config)
    return FakeRegistry(tmp_path / "form")


def pipeline(draft: str | None, context: int = CONTEXT, name: str = "large") -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": name,
            "dataset": {"source": "r.jsonl", "target": "text", "features": []},
            "model": {"family": "causal_lm", "tokenizer": {"max_tokens": context}},
            "serving": {"generation": {"draft": draft}},
        }
    )


def test_a_draft_stays_the_version_that_it_was_when_the_run_began(registry: Any) -> None:
    pinned = with_pinned_draft(pipeline("small"), registry)
    registry.champion = 2
    assert pinned.serving.generation.draft == "small/1"
    draft = draft_of(pinned.serving.generation, registry)
    assert draft is not None
    assert (draft.name, registry.fetched) == ("small/1", [1])
    assert draft.sha256 == digest_of_all(registry.files)
    assert with_pinned_draft(pipeline("small"), registry).serving.generation.draft == "small/2"


def test_a_run_pins_it_before_time_is_spent(
    registry: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(draft_model, "registry_of", lambda installation: registry)
    steps = steps_of(kind_named("language"))
    pinned = steps.pin_versions(pipeline("small"), Installation(tmp_path, "", ""))
    assert pinned.serving.generation.draft == "small/1"


def test_without_a_draft_nothing_is_looked_for(registry: Any) -> None:
    plain = pipeline(None)
    assert with_pinned_draft(plain, registry) is plain
    assert draft_of(plain.serving.generation, registry) is None


@pytest.mark.parametrize("name", ["nobody", "small@old", "small/7"])
def test_a_draft_that_is_not_there_is_told(registry: Any, name: str) -> None:
    with pytest.raises(InputError, match=r"no registered version|has no small version 7"):
        with_pinned_draft(pipeline(name), registry)


def test_a_draft_is_a_language_model(registry: Any) -> None:
    registry.kind = "graph"
    for look in (
        lambda: with_pinned_draft(pipeline("small"), registry),
        lambda: draft_of(pipeline("small/1").serving.generation, registry),
    ):
        with pytest.raises(InputError, match="small version 1 is not a language model"):
            look()


def test_a_misfit_is_told_before_the_training(registry: Any) -> None:
    require_draft(pipeline("small/1"), registry, TOKENIZER)
    require_draft(pipeline(None), registry, b"another")
    with pytest.raises(InputError, match="its tokenizer differs"):
        require_draft(pipeline("small/1"), registry, b"another")
    with pytest.raises(InputError, match="its context is shorter"):
        require_draft(pipeline("small/1", context=CONTEXT + 1), registry, TOKENIZER)


@pytest.mark.parametrize("name", ["large", "large@old", "large/1"])
def test_no_model_drafts_for_itself(name: str) -> None:
    with pytest.raises(ValueError, match=f"draft: {name} is this model itself"):
        pipeline(name)
