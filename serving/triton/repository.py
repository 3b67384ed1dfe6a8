"""Triton's model repository on disk.

    MODEL/config.pbtxt
    MODEL/labels.txt
    MODEL/<version>/         see `serving/triton/version_folder.py`

MLflow version N is Triton version N. A version folder is published by one rename and never changes,
because Triton could load half a model if the folder changed during the load.
"""

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.file_locks import try_lock
from millrace.serving.triton.model_config import LABELS, to_text
from millrace.serving.triton.server_index import owner_of
from millrace.serving.triton.version_config import triton_kind
from millrace.serving.triton.version_folder import (
    Artifact,
    copy_version,
    digest_in,
    found_in,
    is_whole,
    read_version,
    rewrite_card,
    write_version,
)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class SavedConfig:
    """The contents of a model's configuration files; None for a file that did not exist."""

    config: bytes | None
    labels: bytes | None


@dataclass(frozen=True)
class Repository:
    """A model repository, and the folder on the same filesystem where versions are staged."""

    root: Path
    staging: Path

    def versions(self, model: str | None = None) -> dict[str, tuple[int, ...]]:
        """Return the models on disk and their versions, in ascending order.

        Args:
            model: return only this model and its helper models; None: all models.
        """
        found: dict[str, tuple[int, ...]] = {}
        for folder in sorted(self.root.iterdir()):
            ours = NAME.fullmatch(folder.name) and model in (None, owner_of(folder.name))
            if ours and folder.is_dir():
                with suppress(FileNotFoundError):  # a helper model that was removed meanwhile
                    found[folder.name] = tuple(sorted(_versions_in(folder)))
        return found

    def digests(self, model: str | None = None) -> dict[str, dict[int, str]]:
        """Return the models on disk, and the recorded digest of each version.

        Versions with an unreadable `version.json` are left out.

        Args:
            model: return only this model and its helper models; None: all models.
        """
        found: dict[str, dict[int, str]] = {}
        for name, versions in self.versions(model).items():
            found[name] = {}
            for version in versions:
                with suppress(WorkError):
                    found[name][version] = digest_in(self._version(name, version))
        return found

    def artifact(self, model: str, version: int) -> Artifact:
        """Return the files and the settings of a staged version.

        Raises:
            WorkError: the version is not staged, or its folder is damaged.
        """
        return read_version(self._version(model, version))

    def stage(self, model: str, version: int, artifact: Artifact) -> bool:
        """Publish a version folder by one rename; return False if it already existed.

        A version that exists gets the settings of the artifact's serving profile.

        Raises:
            InputError: Triton cannot serve the files.
            TransientError: the files cannot be copied.
            WorkError: the digest of the files is not the registered one, or the version exists with
                other contents.
        """
        target = self._version(model, version)
        if target.exists() and not self.is_whole(model, version):
            self.remove(model, version)
        if target.exists():
            self._require_same_contents(model, version, artifact)
            self._apply_profile(target, artifact)
            return False
        with self.workspace() as work:
            folder = work / str(version)
            folder.mkdir()
            kind = triton_kind(artifact)
            write_version(folder, artifact, kind.reserved_names(artifact))
            staged = read_version(folder)
            kind.check(staged)
            for name, text in kind.backend_files(staged, target).items():
                (folder / name).write_text(text)
                (folder / name).chmod(0o440)
            target.parent.mkdir(mode=0o750, exist_ok=True)
            try:
                folder.rename(target)
            except OSError as error:
                if not target.exists():
                    raise _cannot_move(folder, target, error) from error
                self._require_same_contents(model, version, artifact)
                return False
        return True

    def is_whole(self, model: str, version: int) -> bool:
        """Whether a version's files are unchanged since it was staged. Reads all files."""
        folder = self._version(model, version)
        if not is_whole(folder):
            return False
        artifact = read_version(folder)
        backend_files = triton_kind(artifact).backend_files(artifact, folder)
        return all(
            _bytes_or_none(folder / name) == text.encode() for name, text in backend_files.items()
        )

    def remove(self, model: str, version: int) -> bool:
        """Remove a version folder by one rename; return False if there was none.

        The version must not be loaded on any server.
        """
        return self._remove(self._version(model, version))

    def link(self, model: str, version: int, name: str, number: int) -> None:
        """Publish a copy of a staged version as version `number` of another model."""
        source, target = self._version(model, version), self._version(name, number)
        if target.exists():
            return
        with self.workspace() as work:
            folder = work / str(number)
            copy_version(source, folder)
            target.parent.mkdir(mode=0o750, exist_ok=True)
            folder.rename(target)

    def remove_model(self, model: str) -> bool:
        """Remove a model's folder by one rename; return False if there was none."""
        return self._remove(self._model(model))

    def _remove(self, folder: Path) -> bool:
        if not folder.exists():
            return False
        with self.workspace() as work:
            folder.rename(work / folder.name)
        return True

    def write_config(self, config: pb.ModelConfig, labels: Sequence[str] = ()) -> None:
        """Write a model's `config.pbtxt` and `labels.txt`, replacing each file atomically."""
        text = "".join(f"{one_line(label)}\n" for label in labels)
        self.restore(
            config.name, SavedConfig(to_text(config).encode(), text.encode() if labels else None)
        )

    def saved_config(self, model: str) -> SavedConfig:
        """Return the contents of a model's configuration files, to `restore` them later."""
        folder = self._model(model)
        return SavedConfig(*(_bytes_or_none(folder / name) for name in ("config.pbtxt", LABELS)))

    def restore(self, model: str, saved: SavedConfig) -> None:
        """Write a model's configuration files as they were saved."""
        folder = self._model(model)
        folder.mkdir(mode=0o750, exist_ok=True)
        # labels first, because the config names their file
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
        """Yield a private folder beside the repository, which is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="stage-", dir=self.staging) as folder:
            yield Path(folder)

    @contextmanager
    def exclusive(self, model: str, *, wait: bool = True) -> Iterator[bool]:
        """Lock a model's releases on this machine for the length of the block.

        Yields whether the lock was acquired; always True if `wait`.

        Args:
            model: the model's name in the registry.
            wait: whether to wait until another process releases the lock.
        """
        name = hashlib.sha256(model.encode()).hexdigest()[:32]
        with self._lock(f"release-{name}.lock", wait=wait) as is_locked:
            yield is_locked

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Lock trials on this machine. One runs at a time because each measures latency."""
        with self._lock("probing.lock"):
            yield

    @contextmanager
    def _lock(self, file: str, *, wait: bool = True) -> Iterator[bool]:
        with open(self.staging / file, "w", opener=_open_private) as lock:
            if wait:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield True
            else:
                yield try_lock(lock)

    def _model(self, model: str) -> Path:
        if not NAME.fullmatch(model):
            raise InputError(
                "the name of the model cannot be the name of a folder",
                seen=repr(model),
                valid="letters, digits, '.', '_' and '-', a letter or a digit first",
                hint="register the model by another name",
            )
        return self.root / model

    def _version(self, model: str, version: int) -> Path:
        if version < 1:
            raise InputError(
                f"a version of {model} with this number cannot be served",
                seen=version,
                valid="1, 2, 3, …",
            )
        return self._model(model) / str(version)

    def _apply_profile(self, folder: Path, artifact: Artifact) -> None:
        """Write the settings of a version that was staged with another serving profile."""
        if read_version(folder).profile != artifact.profile:
            with self.workspace() as work:
                rewrite_card(folder, artifact, work)

    def _require_same_contents(self, model: str, version: int, artifact: Artifact) -> None:
        folder = self._version(model, version)
        if (found := found_in(folder)) != artifact.contents:
            raise WorkError(
                f"version {version} of {model} is in the model repository with other contents than "
                "in the registry",
                seen=found,
                valid=artifact.contents,
                hint="a version never changes: register the changed files as a new version, or "
                f"remove {folder} if it was put there by hand",
            )


def one_line(label: str) -> str:
    """Return a label as one line of `labels.txt`, which is what Triton returns to clients."""
    return " ".join(label.splitlines())


def _versions_in(folder: Path) -> Iterator[int]:
    for each in folder.iterdir():
        if each.is_dir() and each.name.isascii() and each.name.isdigit() and each.name[0] != "0":
            yield int(each.name)


def _bytes_or_none(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _cannot_move(folder: Path, target: Path, error: OSError) -> TransientError:
    return TransientError(
        f"{folder} cannot be moved to {target}",
        seen=error.strerror,
        valid="a staging folder on the filesystem of the model repository",
        hint="put both folders below one MILLRACE_HOME, and check its permissions",
    )
