"""Triton's model repository on disk.

    MODEL/config.pbtxt
    MODEL/labels.txt
    MODEL/<version>/model.onnx
    MODEL/<version>/tokenizer.json   of a model that reads text
    MODEL/<version>/version.json     what this version is; Triton does not read it

MLflow version N is Triton version N. A version folder appears by one rename and never changes: a
folder that is touched while Triton loads it gives half a model.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from models.digest import digest_of
from models.errors import InputError, TransientError, WorkError
from models.specs.serving import ServingSpec
from serving.config import LABELS, to_text
from serving.names import owner_of
from serving.onnx_graph import Signature, read_signature
from serving.text_signature import of_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
CHUNK = 1 << 20
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Artifact:
    """What a version consists of.

    Attributes:
        onnx: the model file, anywhere on this machine.
        sha256: the digest that the registry holds for it, 64 hexadecimal digits.
        labels: class names, in the order of the output.
        serving: how Triton is to serve it.
        tokenizer: contents of `tokenizer.json`, for a model that reads text.
    """

    onnx: Path
    sha256: str
    labels: tuple[str, ...] = ()
    serving: ServingSpec = field(default_factory=ServingSpec)
    tokenizer: str | None = None


@dataclass(frozen=True)
class SavedConfig:
    """A model's configuration files as they were; None where there was none."""

    config: bytes | None
    labels: bytes | None


@dataclass(frozen=True)
class Repository:
    """A model repository and the folder, on the same filesystem, where versions are staged."""

    root: Path
    staging: Path

    def versions(self, model: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the models on disk and their versions, ascending.

        Args:
            model: the model to look at, with what was made of it for a while; None for all.
        """
        found: dict[str, tuple[int, ...]] = {}
        for folder in sorted(self.root.iterdir()):
            ours = NAME.fullmatch(folder.name) and model in (None, owner_of(folder.name))
            if ours and folder.is_dir():
                with suppress(FileNotFoundError):  # another model's trial, over by now
                    found[folder.name] = tuple(sorted(_versions_in(folder)))
        return found

    def digests(self, model: str | None = None) -> dict[str, dict[int, str]]:
        """Return the models on disk, and the digest of each version whose folder is whole.

        Args:
            model: the model to look at, with what was made of it for a while; None for all.
        """
        found: dict[str, dict[int, str]] = {}
        for name, versions in self.versions(model).items():
            found[name] = {}
            for version in versions:
                with suppress(WorkError):
                    found[name][version] = str(self._read_card(name, version)["sha256"])
        return found

    def onnx(self, model: str, version: int) -> Path:
        """Return the path of a version's model file."""
        return self._version(model, version) / "model.onnx"

    def signature(self, model: str, version: int) -> Signature:
        """Read what a client sees of a staged version: its inputs and outputs."""
        found, artifact = read_signature(self.onnx(model, version)), self.artifact(model, version)
        if artifact.tokenizer is None:
            return found
        return of_text(found, labelled=bool(artifact.labels))

    def artifact(self, model: str, version: int) -> Artifact:
        """Return what was staged as a version.

        Raises:
            WorkError: the version is not staged, or its folder is damaged.
        """
        card, folder = self._read_card(model, version), self._version(model, version)
        try:
            tokenizer = (folder / TOKENIZER).read_text() if card.get("tokenizer") else None
            serving = ServingSpec.model_validate(card["serving"])
        except (OSError, ValueError) as error:
            raise self._damaged(model, version, error) from error
        return Artifact(
            self.onnx(model, version), card["sha256"], tuple(card["labels"]), serving, tokenizer
        )

    def stage(self, model: str, version: int, artifact: Artifact) -> bool:
        """Publish a version folder by one rename; return False if it was there already.

        Raises:
            InputError: the file is not an ONNX model that Triton can serve from one file.
            WorkError: the digest is not the expected one, or the version exists with another.
        """
        target = self._version(model, version)
        if target.exists() and not self.is_whole(model, version):
            self.remove(model, version)
        if target.exists():
            self._must_equal(model, version, artifact)
            return False
        with self.workspace() as work:
            folder = work / str(version)
            folder.mkdir()
            _copy_verified(artifact, folder / "model.onnx")
            read_signature(folder / "model.onnx")
            (folder / "version.json").write_text(_card(artifact))
            if artifact.tokenizer is not None:
                (folder / TOKENIZER).write_text(artifact.tokenizer)
            _share_with_group(folder)
            target.parent.mkdir(mode=0o750, exist_ok=True)
            try:
                folder.rename(target)
            except OSError as error:
                if not target.exists():
                    raise _unmovable(folder, target, error) from error
                self._must_equal(model, version, artifact)
                return False
        return True

    def is_whole(self, model: str, version: int) -> bool:
        """Return whether a version's files are those that were staged: reads all of them."""
        try:
            artifact = self.artifact(model, version)
            same = self._read_card(model, version).get("tokenizer") == _tokenizer_digest(artifact)
            return same and digest_of(artifact.onnx) == artifact.sha256
        except (WorkError, OSError):
            return False

    def remove(self, model: str, version: int) -> bool:
        """Take a version folder away by one rename; return False if there was none.

        Only for versions that no server has loaded.
        """
        target = self._version(model, version)
        if not target.exists():
            return False
        with self.workspace() as work:
            target.rename(work / str(version))
        return True

    def link(self, model: str, version: int, name: str, number: int) -> None:
        """Publish a staged version as version `number` of another model too, by one rename."""
        source, target = self._version(model, version), self._version(name, number)
        if target.exists():
            return
        with self.workspace() as work:
            folder = work / str(number)
            shutil.copytree(source, folder, copy_function=_link_or_copy)
            target.parent.mkdir(mode=0o750, exist_ok=True)
            folder.rename(target)

    def remove_model(self, model: str) -> bool:
        """Take a model's whole folder away by one rename; return False if there was none."""
        target = self._model(model)
        if not target.exists():
            return False
        with self.workspace() as work:
            target.rename(work / model)
        return True

    def write_config(self, config: pb.ModelConfig, labels: Sequence[str] = ()) -> None:
        """Write a model's `config.pbtxt` and `labels.txt`, each replaced as a whole."""
        text = "".join(f"{' '.join(label.splitlines())}\n" for label in labels)
        self.restore(
            config.name, SavedConfig(to_text(config).encode(), text.encode() if labels else None)
        )

    def saved_config(self, model: str) -> SavedConfig:
        """Read a model's configuration files, to `restore` them later."""
        folder = self._model(model)
        return SavedConfig(*(_bytes_or_none(folder / name) for name in ("config.pbtxt", LABELS)))

    def restore(self, model: str, saved: SavedConfig) -> None:
        """Make a model's configuration files be `saved`."""
        folder = self._model(model)
        folder.mkdir(mode=0o750, exist_ok=True)
        # labels first: a config that names a file needs it
        for name, content in ((LABELS, saved.labels), ("config.pbtxt", saved.config)):
            if content is None:
                (folder / name).unlink(missing_ok=True)
                continue
            with self.workspace() as work:
                (work / name).write_bytes(content)
                (work / name).chmod(0o640)
                (work / name).replace(folder / name)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """Give a private folder beside the repository, removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="stage-", dir=self.staging) as folder:
            yield Path(folder)

    @contextmanager
    def exclusive(self, model: str, *, wait: bool = True) -> Iterator[bool]:
        """Keep other releases of a model on this machine out, and tell whether the block does.

        Args:
            model: the model; a registry's name, whatever is in it.
            wait: wait for a release that is under way; else the block is not kept free of it.
        """
        name = hashlib.sha256(model.encode()).hexdigest()[:32]
        with self._locked(f"release-{name}.lock", wait=wait) as free:
            yield free

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Keep other trials on this machine out while latency is measured."""
        with self._locked("probing.lock"):
            yield

    @contextmanager
    def _locked(self, file: str, *, wait: bool = True) -> Iterator[bool]:
        with open(self.staging / file, "w", opener=_private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _model(self, model: str) -> Path:
        if not NAME.fullmatch(model):
            raise InputError(
                "the name of a model cannot be a folder's",
                seen=repr(model),
                valid="letters, digits, '.', '_' and '-', a letter or a digit first",
                hint="register the model by another name",
            )
        return self.root / model

    def _version(self, model: str, version: int) -> Path:
        if version < 1:
            raise InputError(
                f"a version of {model} cannot be served", seen=version, valid="1, 2, 3, …"
            )
        return self._model(model) / str(version)

    def _read_card(self, model: str, version: int) -> dict[str, Any]:
        """Return `version.json`; WorkError if it is not there, or is none."""
        try:
            card = json.loads((self._version(model, version) / "version.json").read_text())
            missing = {"sha256", "labels", "serving"} - set(card)
        except (OSError, ValueError, TypeError) as error:
            raise self._damaged(model, version, error) from error
        if missing:
            raise self._damaged(model, version, f"no {min(missing)} in version.json")
        return dict(card)

    def _damaged(self, model: str, version: int, seen: object) -> WorkError:
        return WorkError(
            f"version {version} of {model} is not whole in the model repository",
            seen=seen,
            valid=f"the folder that staging made, {self._version(model, version)}",
            hint="remove the folder; the next release stages the version again",
        )

    def _must_equal(self, model: str, version: int, artifact: Artifact) -> None:
        path = self.onnx(model, version)
        found = digest_of(path) if path.is_file() else "no model.onnx"
        if found != artifact.sha256:
            raise WorkError(
                f"version {version} of {model} is in the model repository with other contents",
                seen=found,
                valid=artifact.sha256,
                hint="a version never changes: register the new file as a new version, or remove "
                f"{path.parent} if it was put there by hand",
            )


def _copy_verified(artifact: Artifact, target: Path) -> None:
    """Copy and hash in one pass, so that the bytes that were checked are those that are served."""
    digest = hashlib.sha256()
    try:
        with artifact.onnx.open("rb") as source, target.open("wb") as copy:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        raise TransientError(
            f"{artifact.onnx} cannot be copied into the model repository",
            seen=error.strerror or error,
            hint="check the free space and the permissions of MILLRACE_HOME, and release again",
        ) from error
    if digest.hexdigest() != artifact.sha256:
        raise WorkError(
            f"{artifact.onnx.name} is not the file that was registered",
            seen=digest.hexdigest(),
            valid=artifact.sha256,
            hint="download it again; if it stays so, the artifact store was changed",
        )


def _link_or_copy(file: str, target: str) -> None:
    try:
        os.link(file, target)
    except OSError:  # a filesystem without hard links
        shutil.copy2(file, target)


def _card(artifact: Artifact) -> str:
    values = {
        "sha256": artifact.sha256,
        "labels": artifact.labels,
        "serving": artifact.serving.model_dump(),
        "tokenizer": _tokenizer_digest(artifact),
    }
    return json.dumps(values, indent=1)


def _tokenizer_digest(artifact: Artifact) -> str | None:
    text = artifact.tokenizer
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def _share_with_group(folder: Path) -> None:
    """Let a server that runs as another user of the group read the version, and nobody write it."""
    for file in folder.iterdir():
        file.chmod(0o440)
    folder.chmod(0o750)


def _versions_in(folder: Path) -> Iterator[int]:
    for each in folder.iterdir():
        if each.is_dir() and each.name.isascii() and each.name.isdigit() and each.name[0] != "0":
            yield int(each.name)


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _unmovable(folder: Path, target: Path, error: OSError) -> TransientError:
    return TransientError(
        f"{folder} cannot be moved to {target}",
        seen=error.strerror,
        valid="a staging folder on the filesystem of the model repository",
        hint="put both below one MILLRACE_HOME, and check its permissions",
    )
