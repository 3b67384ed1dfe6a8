"""The draft of a language model: what is staged of it, and which ones fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.language.draft_files import Tokens, require_fit, tokens_of
from millrace.serving.triton.version_config import triton_kind
from millrace.serving.triton.version_folder import (
    DRAFT,
    Artifact,
    Draft,
    copy_version,
    found_in,
    is_whole,
    read_version,
    write_version,
)

DRAFTED = ServingSpec.model_validate({"generation": {"draft": "small/3"}})
CONFIG = {"vocab_size": 300, "max_position_embeddings": 64}


def check(artifact: Artifact) -> None:
    triton_kind(artifact).check(artifact)


def variant(folder: Path, tokenizer: str = "{}", **config: Any) -> dict[str, Path]:
    """Write the files of a form that matter here."""
    contents = {
        "openvino_model.xml": folder.name,
        "tokenizer.json": tokenizer,
        "config.json": json.dumps(CONFIG | config),
    }
    folder.mkdir()
    for name, text in contents.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in contents}


def draft_of(files: dict[str, Path]) -> Draft:
    return Draft("small/3", files, digest_of_all(files))


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    files = variant(tmp_path / "large")
    draft = draft_of(variant(tmp_path / "small"))
    return Artifact(files, digest_of_all(files), "language", serving=DRAFTED, draft=draft)


@pytest.fixture
def folder(tmp_path: Path, artifact: Artifact) -> Path:
    made = tmp_path / "1"
    made.mkdir()
    write_version(made, artifact)
    return made


def test_a_draft_is_staged_with_the_model_and_read_again(folder: Path, artifact: Artifact) -> None:
    found = read_version(folder)
    assert artifact.draft is not None
    assert found.draft is not None
    assert (found.draft.name, found.draft.sha256) == ("small/3", artifact.draft.sha256)
    assert found.draft.files["openvino_model.xml"] == folder / DRAFT / "openvino_model.xml"
    assert found.size_bytes == artifact.size_bytes
    assert found_in(folder) == found.contents == artifact.contents != artifact.sha256
    check(found)


def test_a_version_is_whole_only_with_its_draft(folder: Path, tmp_path: Path) -> None:
    copy_version(folder, tmp_path / "copy")
    assert is_whole(folder)
    assert is_whole(tmp_path / "copy")
    (folder / DRAFT / "config.json").chmod(0o640)
    (folder / DRAFT / "config.json").write_text("{}")
    assert not is_whole(folder)
    (folder / DRAFT / "config.json").unlink()
    assert not is_whole(folder)
    assert found_in(folder) == "no draft/config.json"


def test_other_files_than_the_registry_has_are_not_staged(
    tmp_path: Path, artifact: Artifact
) -> None:
    assert artifact.draft is not None
    (tmp_path / "1").mkdir()
    changed = replace(artifact, draft=replace(artifact.draft, sha256="0" * 64))
    with pytest.raises(WorkError, match="not those that were registered as small/3"):
        write_version(tmp_path / "1", changed)


def test_a_draft_is_staged_where_one_is_asked_for(artifact: Artifact) -> None:
    for other in (replace(artifact, draft=None), replace(artifact, serving=ServingSpec())):
        with pytest.raises(InputError, match="not the one that serving.generation.draft names"):
            check(other)


@pytest.mark.parametrize(
    ("tokenizer", "config", "told"),
    [
        ("[]", {}, "its tokenizer differs"),
        ("{}", {"vocab_size": 301}, "its vocabulary size differs"),
        ("{}", {"max_position_embeddings": 63}, "its context is shorter"),
    ],
)
def test_a_draft_that_does_not_fit_is_told(
    tmp_path: Path, artifact: Artifact, tokenizer: str, config: dict[str, int], told: str
) -> None:
    other = draft_of(variant(tmp_path / "other", tokenizer, **config))
    with pytest.raises(InputError, match=f"small/3 cannot draft for this model: {told}"):
        check(replace(artifact, draft=other))


def test_what_is_not_known_of_the_model_is_not_compared(tmp_path: Path) -> None:
    files = variant(tmp_path / "other", max_position_embeddings=63)
    known = tokens_of(files, "the model")
    require_fit(Tokens(known.tokenizer), draft_of(files))
    require_fit(Tokens(known.tokenizer, 300, 63), draft_of(files))


def test_a_draft_has_to_be_in_a_form_that_is_served(tmp_path: Path, artifact: Artifact) -> None:
    files = variant(tmp_path / "other")
    del files["openvino_model.xml"]
    with pytest.raises(InputError, match="small/3 has no variant that can be served"):
        check(replace(artifact, draft=draft_of(files)))


def test_both_are_opened_by_one_engine(tmp_path: Path, artifact: Artifact) -> None:
    files = variant(tmp_path / "other")
    files["model.safetensors"] = files.pop("openvino_model.xml")
    of_vllm = draft_of(files)
    with pytest.raises(InputError, match="its engine differs"):
        check(replace(artifact, draft=of_vllm))
    check(replace(artifact, files=files, draft=of_vllm))
    with pytest.raises(InputError, match="its engine differs"):
        check(replace(artifact, files=files))


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_config_that_cannot_be_read(tmp_path: Path, artifact: Artifact, text: str) -> None:
    files = variant(tmp_path / "other")
    files["config.json"].write_text(text)
    with pytest.raises(InputError, match="config.json of small/3 cannot be read"):
        check(replace(artifact, draft=draft_of(files)))
