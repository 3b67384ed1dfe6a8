"""The files of a registered version, which are fetched from MLflow and checked.

The kind of model defines where the model's files are, and which evidence files are stored with
them.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millrace.models.common.bounded_files import bounded_text, require_readable
from millrace.models.common.digest import digest_of, digest_of_all, digest_of_model
from millrace.models.common.errors import InputError, MillraceError, TransientError
from millrace.models.config.model_kind import FIRST_KIND, ModelKind, kind_named
from millrace.models.registry.artifact_store import MOST_FILES, StoredFolder, require_room
from millrace.models.registry.tracking import client
from millrace.models.registry.version_record import without_record

DIGEST_TAG = "millrace.digest"
DATASET_TAG = "millrace.dataset"
"""Tag with the snapshot that the version was trained on; see `dataset_tag`."""
CANDIDATE_TAG = "millrace.candidate"
"""Tag with the name of the variant that the version is."""
CERTIFICATE_TAG, PASSED, FAILED = "millrace.certificate", "passed", "failed: "
"""The tag that says whether a version passed its gates, its value if so, and the beginning of its
value if not."""
COMPARED_TAG = "millrace.compared"
"""Tag that says how a version compares with the one that it would replace, in a sentence."""
EVIDENCE_TAG = "millrace.evidence"
"""Tag with the digest of the evidence files, such as the certificate."""
KIND_TAG = "millrace.kind"
CHAMPION, CHALLENGER = "champion", "challenger"
"""Aliases: the version to serve, and a good one beside it."""
EXTRA = "extra_files"
"""Folder of the evidence files in the artifact store. In the folder of a `Package`, these files are
at the top level."""
ONNX = ".onnx"
ONNX_BYTES = (2 << 30) - 1
"""Largest ONNX file, in bytes. An ONNX file that contains its weights is one protobuf message,
which is limited to 2 GiB."""
EVIDENCE_BYTES = 1 << 30
"""Largest evidence file, in bytes. Limits for reading are lower: `models/common/bounded_files.py`.
"""
UNNUMBERED = 0
"""Number of a version that is not registered yet."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Pattern for the names of a model's files."""


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model.

    Attributes:
        model: name of the registered model.
        version: its number, which is also its version number in Triton.
        digest: digest of its files, see `digest_of_model`; empty if Millrace did not register it.
        run_id: id of the MLflow run that made it.
        aliases: aliases that point at it.
        tags: its tags.
        source: URI of its files, as it was registered.
    """

    model: str
    version: int
    digest: str
    run_id: str
    aliases: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def registered(
        cls,
        model: str,
        number: int | str,
        run_id: str | None,
        source: str | None,
        tags: Mapping[str, str],
        aliases: Iterable[str],
    ) -> "ModelVersion":
        """Return a version from what the registry says of it; see `version_record` for its tags."""
        found, ordered = without_record(tags), tuple(sorted(aliases))
        digest = found.get(DIGEST_TAG, "")
        return cls(model, int(number), digest, run_id or "", ordered, found, source or "")

    @property
    def kind(self) -> ModelKind:
        """The version's kind of model; `FIRST_KIND` if an earlier Millrace registered it.

        Raises:
            InputError: this version of Millrace does not know the kind.
        """
        return kind_named(self.tags.get(KIND_TAG, FIRST_KIND))

    @property
    def title(self) -> str:
        """The version in words, for messages."""
        if self.version == UNNUMBERED:
            return f"the new version of {self.model}"
        return f"{self.model} version {self.version}"

    @property
    def dataset(self) -> tuple[str, int] | None:
        """Name and version of the snapshot that it was trained on; None if that is not known."""
        return parse_dataset(self.tags.get(DATASET_TAG, ""))


def dataset_tag(name: str, version: int) -> str:
    """Return the value of `DATASET_TAG` for a snapshot."""
    return f"{name} version {version}"


def parse_dataset(tag: str) -> tuple[str, int] | None:
    """Return name and version of the snapshot in a `DATASET_TAG`; None if it has none."""
    name, _, number = tag.rpartition(" version ")
    return (name, int(number)) if number.isdigit() else None


@dataclass(frozen=True)
class Package:
    """The files of a fetched version, with checked digests.

    Attributes:
        version: the version.
        files: the model's files, by name.
        folder: folder of the evidence files.
        untrusted: why the version is used although it is not signed; empty if it is signed.
    """

    version: ModelVersion
    files: Mapping[str, Path]
    folder: Path
    untrusted: str = ""

    def text(self, name: str) -> str:
        """Return the text of an evidence file.

        Raises:
            ValueError: the file is too large, or not text.
        """
        return bounded_text(self.folder / name)

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Raise an InputError (see `unreadable`) if the `with` block fails to read the file."""
        try:
            yield
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise unreadable(self.version, name, error) from error


def unreadable(version: ModelVersion, what: str, error: Exception) -> InputError:
    """Return the error for a version's file that cannot be read."""
    lines = str(error).splitlines() or [""]
    return InputError(
        f"the {what} of {version.title} cannot be read",
        seen=lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}",
        hint="run the pipeline again with `millrace run`, which registers a new version",
    )


def fetched(version: ModelVersion, tracking_uri: str, cache: Path) -> Package:
    """Return the files of a version, from the cache if they are in it.

    Args:
        version: the version.
        tracking_uri: address of the version's MLflow.
        cache: local folder in which fetched versions are kept.

    Raises:
        InputError: the version was not made by Millrace, or its files are not the files that were
            registered.
        TransientError: the artifact store does not answer.
    """
    if not version.digest:
        raise InputError(
            f"{version.title} has no digest",
            valid=f"a version registered by Millrace, with the tag {DIGEST_TAG}",
            hint="point the model's alias, such as champion, at another version in the MLflow UI",
        )
    folder = _cached_folder(version, cache)
    if not folder.exists():
        _download(version, tracking_uri, folder)
    if not _is_whole(folder, version):  # damaged since it was cached
        shutil.rmtree(folder)
        _download(version, tracking_uri, folder)
    return Package(version, _model_files(folder, version), folder)


def _download(version: ModelVersion, tracking_uri: str, folder: Path) -> None:
    """Download the files of a version; rename their folder only once they are checked."""
    with store_errors(version):
        # Not by models:/NAME/N, for which MLflow uses one registry for the whole process.
        uri = client(tracking_uri).get_model_version_download_uri(
            version.model, str(version.version)
        )
    with staged_files(version, StoredFolder(uri, tracking_uri), folder.parent.parent) as kept:
        # Checked before the folder is renamed: a bad download is not cached, and is tried again.
        require_readable(kept, version.title)
        _keep(kept, folder)


@contextmanager
def staged_files(version: ModelVersion, stored: StoredFolder, cache: Path) -> Iterator[Path]:
    """Download the files of a version into a staging folder, and check their digests.

    Args:
        version: the version, with its tags.
        stored: the folder of its files in the artifact store.
        cache: the folder in which the staging folder is made, and removed after the block.

    Raises:
        InputError: the files are not those with the digests in the tags.
        TransientError: the artifact store does not answer.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with store_errors(version):
        files = _listed(stored, version)
    require_room(sum(files.values()), cache, version.title)
    with tempfile.TemporaryDirectory(dir=cache) as staging:
        kept = Path(staging) / "package"
        kept.mkdir()
        for path, size in files.items():
            to = kept / path.removeprefix(f"{EXTRA}/")
            to.parent.mkdir(exist_ok=True)
            with store_errors(version):
                stored.fetch(path, size, to)
        _check_digests(kept, version)
        yield kept


def keep_files(kept: Path, version: ModelVersion, cache: Path) -> None:
    """Move the staged files of a version into the cache, where `fetched` finds them."""
    _keep(kept, _cached_folder(version, cache))


def _keep(kept: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        kept.rename(folder)


def _cached_folder(version: ModelVersion, cache: Path) -> Path:
    return cache / version.model / f"{version.version}-{version.digest[:16]}"


def _listed(stored: StoredFolder, version: ModelVersion) -> dict[str, int]:
    """Return path and size of each file of a version; ignore other files in its folder.

    Raises:
        InputError: a file is missing or too large, or there are too many files.
    """
    kind, extra = version.kind, stored.sizes(EXTRA)
    found = {f"{EXTRA}/{name}": extra.get(name) for name in kind.evidence_files}
    most = dict.fromkeys(found, EVIDENCE_BYTES)
    sizes = stored.sizes(kind.model_folder)
    names = kind.model_files or filter(NAME.fullmatch, sorted(sizes))
    found |= {str(Path(kind.model_folder, name)): sizes.get(name) for name in names}
    most |= {path: ONNX_BYTES for path in found if path.endswith(ONNX)}
    if len(found) > MOST_FILES:
        raise _unexpected_files(version, f"{len(found):,} files", f"at most {MOST_FILES:,} files")
    files: dict[str, int] = {}
    for path, size in found.items():
        if size is None:
            raise _lacks(version, path)
        if size > most.get(path, size):
            raise _unexpected_files(
                version, f"{path} of {size:,} bytes", f"at most {most[path]:,} bytes"
            )
        files[path] = size
    return files


def _lacks(version: ModelVersion, path: str) -> InputError:
    return InputError(
        f"{version.title} has no {Path(path).name}",
        valid=f"a version registered by Millrace, with {', '.join(version.kind.evidence_files)}",
        hint="point the model's alias, such as champion, at another version in the MLflow UI",
    )


def _unexpected_files(version: ModelVersion, seen: str, valid: str) -> InputError:
    return InputError(
        f"{version.title} has more or larger files than any version that Millrace registers",
        seen=seen,
        valid=valid,
        hint="point the model's alias, such as champion, at another version in the MLflow UI",
    )


def _model_files(folder: Path, version: ModelVersion) -> dict[str, Path]:
    kind = version.kind
    found = sorted((folder / kind.model_folder).glob("*")) if not kind.model_files else ()
    names = kind.model_files or tuple(file.name for file in found)
    return {name: folder / kind.model_folder / name for name in names}


@contextmanager
def store_errors(version: ModelVersion) -> Iterator[None]:
    """Raise an error of the artifact store as a `MillraceError`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise _unfetched(version, error) from error


def _unfetched(version: ModelVersion, error: Exception) -> MillraceError:
    """Return the error for unfetched files: InputError if they are missing, else TransientError."""
    gone = isinstance(error, FileNotFoundError) or (
        getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
    )
    kind = InputError if gone else TransientError
    return kind(
        f"the files of {version.title} cannot be fetched",
        seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
        hint="check the artifact store of MLflow",
    )


def _check_digests(folder: Path, version: ModelVersion) -> None:
    """Raise InputError unless the files are those that were registered.

    The evidence is not checked if an earlier Millrace registered the version without a digest of
    the evidence.
    """
    evidence = version.tags.get(EVIDENCE_TAG)
    files = _model_files(folder, version)
    what = next(iter(files)) if len(files) == 1 else "its model"
    found = {what: digest_of_model({name: digest_of(file) for name, file in files.items()})}
    wanted = {what: version.digest}
    if evidence is not None:
        beside = {name: folder / name for name in version.kind.evidence_files}
        found["its evidence"] = digest_of_all(beside)
        wanted["its evidence"] = evidence
    if found != wanted:
        what = next(name for name in wanted if found[name] != wanted[name])
        raise InputError(
            f"a file of {version.title} is not the file that was registered",
            seen=f"sha256 {found[what]} of {what}",
            valid=f"sha256 {wanted[what]}",
            hint="run the pipeline again with `millrace run`, which registers a new version, or "
            "point the model's alias, such as champion, at another version in the MLflow UI",
        )


def _is_whole(folder: Path, version: ModelVersion) -> bool:
    try:
        _check_digests(folder, version)
    except (InputError, OSError):
        return False
    return True
