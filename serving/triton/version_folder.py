"""A version's folder in Triton's model repository. Its files are written once, and then only read.

model.onnx       the ONNX graph; a language model has the files of an exported variant instead
tokenizer.json   the tokenizer of a text model
features.json    the rules for requests to a model with column inputs
columns.json     the columns by their names, for the step in front of the model
draft/           the files of the smaller model that drafts tokens for a language model
version.json     the card: digests, kind, labels and settings; Triton does not read it. A serving
                 profile replaces the settings
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace.models.common.digest import ONNX_FILE, digest_of, digest_of_model
from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.config.model_kind import FIRST_KIND
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.registry.version_files import NAME

ONNX, TOKENIZER, CARD = ONNX_FILE, "tokenizer.json", "version.json"
RULES, COLUMNS = "features.json", "columns.json"
DRAFT = "draft"
"""Name of the folder of a draft model's files, in the version's folder."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Draft:
    """A registered version that drafts tokens for another version (speculative decoding).

    Attributes:
        name: the draft's version, as NAME/VERSION.
        files: the draft's files, by their names in the folder `draft`.
        sha256: the digest of the files in the registry; see `digest_of_model`.
    """

    name: str
    files: Mapping[str, Path]
    sha256: str

    def __str__(self) -> str:
        """Return the draft's version and the digest of its files."""
        return f"{self.name}, sha256 {self.sha256[:16]}"


@dataclass(frozen=True)
class Artifact:
    """The files and the settings of a version.

    Attributes:
        files: the paths of the model's files, by their names in the version's folder. The paths may
            be anywhere on this machine.
        sha256: the digest of the files in the registry, 64 hexadecimal digits; see
            `digest_of_model`.
        kind: the kind of model, which decides how Triton serves the version.
        labels: class names, in the order of the output's columns.
        serving: the serving settings.
        tokenizer: contents of `tokenizer.json`, for a text model.
        draft: the version that drafts tokens, for a language model.
        rules: contents of `features.json`, for a model with column inputs.
        columns: contents of `columns.json`; None if the columns have no names.
        profile: digest of the serving profile with these settings; empty for those of the pipeline
            file.
    """

    files: Mapping[str, Path]
    sha256: str
    kind: str = FIRST_KIND
    labels: tuple[str, ...] = ()
    serving: ServingSpec = field(default_factory=ServingSpec)
    tokenizer: str | None = None
    draft: Draft | None = None
    rules: str | None = None
    columns: str | None = None
    profile: str = ""

    @property
    def size_bytes(self) -> int:
        """The size of the model's files and its draft's files, in bytes."""
        drafts = self.draft.files.values() if self.draft else ()
        return sum(file.stat().st_size for file in (*self.files.values(), *drafts))

    @property
    def contents(self) -> str:
        """The digest of all contents. Versions with equal digests give equal answers."""
        return self.sha256 if self.draft is None else f"{self.sha256} with {self.draft}"


def write_version(folder: Path, artifact: Artifact, taken: Collection[str] = ()) -> None:
    """Write a version into an empty folder, and make its files read-only for owner and group.

    Args:
        folder: the empty folder.
        artifact: the version.
        taken: names of the backend's own files, not allowed for files of the model.

    Raises:
        InputError: a file's name is not allowed in this folder.
        TransientError: a file cannot be copied.
        WorkError: the digest of the files is not the registered one.
    """
    reserved = [CARD, DRAFT, *taken]
    reserved += [TOKENIZER] if artifact.tokenizer else []
    reserved += [RULES] if artifact.rules else []
    reserved += [COLUMNS] if artifact.columns else []
    digests = _filled(folder, artifact.files, artifact.sha256, reserved)
    if (draft := artifact.draft) is not None:
        (folder / DRAFT).mkdir()
        _filled(folder / DRAFT, draft.files, draft.sha256, whose=f" as {draft.name}")
        _close(folder / DRAFT)
    (folder / CARD).write_text(_card(artifact, digests))
    if artifact.tokenizer is not None:
        (folder / TOKENIZER).write_text(artifact.tokenizer)
    if artifact.rules is not None:
        (folder / RULES).write_text(artifact.rules)
    if artifact.columns is not None:
        (folder / COLUMNS).write_text(artifact.columns)
    _close(folder)


def read_version(folder: Path) -> Artifact:
    """Return the version in a folder, without reading the model's files.

    Raises:
        WorkError: the folder is missing or damaged.
    """
    card = _read_card(folder)
    try:
        tokenizer = (folder / TOKENIZER).read_text() if card.get("tokenizer") else None
        rules = (folder / RULES).read_text() if card.get("rules") else None
        columns = (folder / COLUMNS).read_text() if card.get("columns") else None
        serving = ServingSpec.model_validate(card["serving"])
        names = list(card.get("files", {ONNX: ""}))
        draft = _read_draft(folder, card.get("draft"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, error) from error
    return Artifact(
        {name: folder / name for name in names},
        card["sha256"],
        card.get("kind", FIRST_KIND),
        labels=tuple(card["labels"]),
        serving=serving,
        tokenizer=tokenizer,
        draft=draft,
        rules=rules,
        columns=columns,
        profile=str(card.get("profile", "")),
    )


def rewrite_card(folder: Path, artifact: Artifact, work: Path) -> None:
    """Replace the settings of a version in its folder, whose files stay.

    Args:
        folder: the version's folder.
        artifact: the version, with the new settings.
        work: an empty folder on the same filesystem.

    Raises:
        WorkError: `version.json` is missing or damaged.
    """
    card = _read_card(folder)
    new = {**card, "serving": artifact.serving.model_dump(), "profile": artifact.profile}
    (work / CARD).write_text(json.dumps(new, indent=1))
    (work / CARD).chmod(0o440)
    (work / CARD).replace(folder / CARD)


def digest_in(folder: Path) -> str:
    """Return the digest that a folder's `version.json` records.

    Raises:
        WorkError: `version.json` is missing or damaged.
    """
    return str(_read_card(folder)["sha256"])


def is_whole(folder: Path) -> bool:
    """Return whether the files are unchanged since they were written. Reads all files."""
    try:
        artifact = read_version(folder)
        card = _read_card(folder)
        same = card.get("tokenizer") == _text_digest(artifact.tokenizer)
        same = same and card.get("rules") == _text_digest(artifact.rules)
        same = same and card.get("columns") == _text_digest(artifact.columns)
        return same and _hashed(artifact) == artifact
    except (WorkError, OSError):
        return False


def found_in(folder: Path) -> str:
    """Return the digest of a folder's files as they are now; see `Artifact.contents`.

    If the folder is damaged, return what is wrong instead, such as which file is missing.
    """
    try:
        artifact = read_version(folder)
    except WorkError as error:
        return str(error.seen)
    drafts = artifact.draft.files.values() if artifact.draft else ()
    files = (*artifact.files.values(), *drafts)
    missing = [file.relative_to(folder) for file in files if not file.is_file()]
    return f"no {missing[0]}" if missing else _hashed(artifact).contents


def copy_version(source: Path, target: Path) -> None:
    """Copy a folder to `target`, with hard links if the filesystem supports them."""
    shutil.copytree(source, target, copy_function=_link_or_copy)


def _hashed(artifact: Artifact) -> Artifact:
    """Return the artifact with the digests that its files have now."""
    draft = artifact.draft
    if draft is not None:
        draft = replace(draft, sha256=_digest_of(draft.files))
    return replace(artifact, sha256=_digest_of(artifact.files), draft=draft)


def _digest_of(files: Mapping[str, Path]) -> str:
    return digest_of_model({name: digest_of(file) for name, file in files.items()})


def _filled(
    folder: Path,
    files: Mapping[str, Path],
    sha256: str,
    reserved: Collection[str] = (),
    whose: str = "",
) -> dict[str, str]:
    """Copy a model's files into a folder and return the files' digests, by name."""
    digests = {}
    for name, file in files.items():
        _require_name(name, reserved)
        digests[name] = _copied(file, folder / name)
    if (found := digest_of_model(digests)) != sha256:
        raise WorkError(
            f"{_in_words(files)} registered{whose}",
            seen=found,
            valid=sha256,
            hint="download the version again; if the digest differs again, the artifact store was "
            "changed",
        )
    return digests


def _close(folder: Path) -> None:
    """Let only owner and group read a folder's files, and nobody write them."""
    for entry in folder.iterdir():
        if entry.is_file():
            entry.chmod(0o440)
    folder.chmod(0o750)


def _read_draft(folder: Path, card: Mapping[str, Any] | None) -> Draft | None:
    """Return the draft that `version.json` describes; None if it has no draft."""
    if card is None:
        return None
    files = {name: folder / DRAFT / name for name in card["files"]}
    return Draft(card["name"], files, card["sha256"])


def _read_card(folder: Path) -> dict[str, Any]:
    try:
        card = json.loads((folder / CARD).read_text())
        missing = {"sha256", "labels", "serving"} - set(card)
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(folder, error) from error
    if missing:
        raise _damaged(folder, f"no {min(missing)} in {CARD}")
    return dict(card)


def _damaged(folder: Path, seen: object) -> WorkError:
    return WorkError(
        f"version {folder.name} of {folder.parent.name} is incomplete in the model repository",
        seen=seen,
        valid=f"the unchanged folder as it was staged, {folder}",
        hint="remove the folder; the next release stages the version again",
    )


def _require_name(name: str, reserved: Collection[str]) -> None:
    if not NAME.fullmatch(name) or name in reserved:
        raise InputError(
            "a file of the model cannot have this name",
            seen=repr(name),
            valid="letters, digits, '.', '_' and '-', a letter or a digit first; no name that "
            "Millrace itself uses in the folder",
            hint="rename the file, and register the model again",
        )


def _card(artifact: Artifact, digests: Mapping[str, str]) -> str:
    values = {
        "sha256": artifact.sha256,
        "kind": artifact.kind,
        "files": dict(digests),
        "labels": artifact.labels,
        "serving": artifact.serving.model_dump(),
        "profile": artifact.profile,
        "tokenizer": _text_digest(artifact.tokenizer),
        "rules": _text_digest(artifact.rules),
        "columns": _text_digest(artifact.columns),
    }
    if (draft := artifact.draft) is not None:
        values["draft"] = {"name": draft.name, "sha256": draft.sha256, "files": [*draft.files]}
    return json.dumps(values, indent=1)


def _text_digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def _copied(source: Path, target: Path) -> str:
    """Copy and hash a file in one pass, so that the hash is of the bytes that are served."""
    found = hashlib.sha256()
    try:
        with source.open("rb") as opened, target.open("wb") as copy:
            while chunk := opened.read(CHUNK):
                found.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        raise TransientError(
            f"{source} cannot be copied into the model repository",
            seen=error.strerror or error,
            hint="check the free space and the permissions of MILLRACE_HOME, and release again",
        ) from error
    return found.hexdigest()


def _in_words(files: Mapping[str, Path]) -> str:
    one = next(iter(files.values())).name
    is_one = len(files) == 1
    return f"{one} is not the file that was" if is_one else "the files are not those that were"


def _link_or_copy(file: str, target: str) -> None:
    try:
        os.link(file, target)
    except OSError:  # a filesystem without hard links
        shutil.copy2(file, target)
