"""A registered version as the model that training starts from: found once, pinned, checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.models.language.base_checkpoint import ARTIFACT, CHECKPOINT_TAG, checkpoint_digest
from millrace.models.language.base_version import fetched_base, pinned_base
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.signing import SigningKeys, Trust
from millrace.models.registry.tracking import TrackedRun, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.language.language_files import save_language_model

FILES = {"config.json": "{}", "model.safetensors": "weights", "adapter/adapter_config.json": "{}"}


@dataclass
class Registered:
    """Versions of a language model in a registry of MLflow."""

    run: TrackedRun
    registry: Registry
    folder: Path

    def version(self, name: str, tags: dict[str, str] | None = None) -> ModelVersion:
        """Register a version, whose run keeps a checkpoint."""
        kind = kind_named("language")
        for file in ("openvino_model.xml", *kind.evidence_files):
            (self.folder / file).write_text("{}")
        files = {"openvino_model.xml": self.folder / "openvino_model.xml"}
        extra = {each: self.folder / each for each in kind.evidence_files}
        tags = {CHECKPOINT_TAG: checkpoint_digest(self.checkpoint)} if tags is None else tags
        return self.registry.register(self.run, name, kind, files, extra, tags, save_language_model)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def kept(self) -> Path:
        """Where MLflow keeps the checkpoint of the run."""
        uri = self.run.client.get_run(self.run.run_id).info.artifact_uri
        return Path(str(uri).removeprefix("file://")) / ARTIFACT


@pytest.fixture
def registered(mlflow_places: Installation, tmp_path: Path) -> Iterator[Registered]:
    with tracked_run(mlflow_places, "bases", {}, system_metrics=False) as run:
        made = Registered(run, registry_of(mlflow_places), tmp_path)
        for name, text in FILES.items():
            (made.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (made.checkpoint / name).write_text(text)
        run.log_file(made.checkpoint, ARTIFACT)
        yield made


def spec(pretrained: str | None, **values: Any) -> ModelSpec:
    return ModelSpec(family="causal_lm", pretrained=pretrained, **values)


def test_an_alias_is_pinned_to_its_version_and_digest(registered: Registered) -> None:
    one, two = registered.version("bases"), registered.version("bases")
    registered.registry.set_alias(one, "champion")
    pinned = pinned_base(spec("models:/bases@champion"), registered.registry)
    assert pinned.pretrained == f"models:/bases/{one.version}"
    assert pinned.revision == checkpoint_digest(registered.checkpoint)
    registered.registry.set_alias(two, "champion")
    assert pinned_base(pinned, registered.registry) == pinned


def test_a_pinned_base_becomes_the_checkpoint_that_its_run_keeps(registered: Registered) -> None:
    version = registered.version("bases")
    pinned = pinned_base(spec(f"models:/bases/{version.version}"), registered.registry)
    fetched = fetched_base(pinned, registered.registry)
    folder = Path(str(fetched.pretrained))
    assert {name: (folder / name).read_text() for name in FILES} == FILES
    assert fetched.revision is None
    (folder / "model.safetensors").write_text("damaged")
    assert fetched_base(pinned, registered.registry) == fetched
    assert (folder / "model.safetensors").read_text() == "weights"


@pytest.mark.parametrize("pretrained", [None, "./decoder", "someone/decoder"])
def test_other_models_stay_as_they_are(pretrained: str | None) -> None:
    registry = Registry("", Path(), Trust(SigningKeys(Path())))  # is not asked
    given = spec(pretrained)
    assert pinned_base(given, registry) == fetched_base(given, registry) == given


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        ("models:/nobody@champion", "there is no registered version 'nobody@champion'"),
        ("models:/bases@nowhere", "there is no registered version 'bases@nowhere'"),
        ("models:/bases/999", "the registry has no bases version 999"),
    ],
)
def test_a_version_that_is_not_there_is_told(registered: Registered, uri: str, what: str) -> None:
    registered.version("bases")
    with pytest.raises(InputError, match=what) as told:
        pinned_base(spec(uri), registered.registry)
    assert "models:/NAME@ALIAS" in f"{told.value.valid}" or "999" in uri


def test_a_graph_is_nothing_to_start_from(registered: Registered) -> None:
    version = registered.version("bases")
    registered.registry.set_tags(version, {"millrace.kind": "graph"})
    with pytest.raises(InputError, match="is not a language model"):
        pinned_base(spec(f"models:/bases/{version.version}"), registered.registry)


def test_a_version_without_a_digest_of_its_checkpoint_is_told(registered: Registered) -> None:
    version = registered.version("bases", tags={})
    with pytest.raises(InputError, match="has no checkpoint to start from"):
        pinned_base(spec(f"models:/bases/{version.version}"), registered.registry)


def test_another_revision_than_that_of_the_version_is_told(registered: Registered) -> None:
    version = registered.version("bases")
    with pytest.raises(InputError, match=r"does not have the digest in model\.revision") as told:
        pinned_base(spec(f"models:/bases/{version.version}", revision="abc"), registered.registry)
    assert told.value.valid == "sha256 abc"


def test_a_checkpoint_that_was_changed_is_refused(registered: Registered) -> None:
    version = registered.version("bases")
    pinned = pinned_base(spec(f"models:/bases/{version.version}"), registered.registry)
    (registered.kept / "model.safetensors").write_text("other")
    with pytest.raises(InputError, match="is not the one that was registered") as told:
        fetched_base(pinned, registered.registry)
    assert told.value.valid == f"sha256 {pinned.revision}"
    (registered.kept / "model.safetensors").write_text("weights")
    assert Path(str(fetched_base(pinned, registered.registry).pretrained)).is_dir()


def test_a_run_that_lost_its_checkpoint_is_told(registered: Registered) -> None:
    version = registered.version("bases")
    pinned = pinned_base(spec(f"models:/bases/{version.version}"), registered.registry)
    registered.kept.rename(registered.kept.with_name("elsewhere"))
    with pytest.raises(InputError, match="cannot be fetched"):
        fetched_base(pinned, registered.registry)


def test_a_checkpoint_is_known_by_all_of_its_files(registered: Registered) -> None:
    files = {name: registered.checkpoint / name for name in FILES}
    assert checkpoint_digest(registered.checkpoint) == digest_of_all(files)


@pytest.mark.parametrize(
    "uri", ["models:/bases", "models:/bases/latest", "models://bases@champion"]
)
def test_an_address_of_no_version_is_refused(uri: str) -> None:
    with pytest.raises(ValidationError, match="models:/NAME@ALIAS or models:/NAME/VERSION"):
        spec(uri)


def test_a_registered_version_goes_with_language_models_only() -> None:
    values: dict[str, Any] = {"name": "p", "dataset": {"source": "r.jsonl", "target": "t"}}
    with pytest.raises(ValidationError, match="is not supported for the family text_classifier"):
        Pipeline.model_validate(
            {**values, "model": {"family": "text_classifier", "pretrained": "models:/bases/1"}}
        )
