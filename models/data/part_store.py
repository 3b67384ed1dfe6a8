"""Where the parts of a dataset's snapshots are stored: one JSON file each in the table's folder.

A snapshot's commit names its parts. The part files go with the rows, but which files of the source
they list is known for ever: before a part file is removed, its list is copied to a folder of its
own. So the list of a file is written once, and not again by each commit. Delta leaves folders that
begin with `_` alone.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from millrace.models.common.errors import WorkError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.folder import Folder
from millrace.models.data.parts import Part, files_of
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import METADATA as SNAPSHOT
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.find_files import manifest_of
from millrace.models.data.sources.source import SourceFile
from millrace.models.data.table_commit import filesystem_of

METADATA = "millrace.parts"
FOLDER, SOURCES = "_parts", "_sources"
"""Folders of the parts, and of the lists of files of removed parts."""
LISTED_BY = "parts"
"""The key of a manifest with the names of the parts that list the files."""
UNCHANGED = "unchanged.json"
"""The file with the parts of a later reading that gave the rows of the newest snapshot again."""
FORMAT = 1
"""Part of the fingerprint. Increase it if a code change reads the same files to other rows."""


@dataclass(frozen=True)
class PartList:
    """What the commit of a snapshot says about its parts.

    Attributes:
        ids: names of the parts, in the order of the source's files.
        reading: fingerprint of the settings with which the parts were read.
        schema: the schema that every row had to fit, before categories were collected.
    """

    ids: tuple[str, ...]
    reading: str
    schema: TableSchema

    def metadata(self) -> dict[str, str]:
        """Return the custom metadata of the commit."""
        return {METADATA: json.dumps(asdict(self))}

    @classmethod
    def of_commit(cls, commit: dict[str, Any]) -> "PartList | None":
        """Return the list in a commit's custom metadata; None if there is none."""
        if METADATA not in commit:
            return None
        return cls.from_json(json.loads(commit[METADATA]))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "PartList":
        """Build from the dictionary of its fields, after a trip through JSON."""
        schema = TableSchema.from_json(values["schema"])
        return cls(tuple(values["ids"]), values["reading"], schema)


def write_unchanged(uri: str, version: int, listed: PartList) -> None:
    """Store the parts of a reading that gave the rows of the newest snapshot again.

    Without that, files that were renamed or touched, or that hold bad rows only, would be read
    again by each ingestion until some row changes.

    Args:
        uri: URI of the dataset's table.
        version: the version of the newest snapshot.
        listed: the parts; their rows are files of this version.

    Raises:
        OSError: the table's folder cannot be written.
    """
    Folder(f"{uri}/{FOLDER}").write_json(UNCHANGED, {"version": version, **asdict(listed)})


def _newest_list(uri: str, commit: dict[str, Any]) -> PartList | None:
    """Return the parts of the newest snapshot as its last reading found them; None if unknown.

    Args:
        uri: URI of the dataset's table.
        commit: the snapshot's commit.
    """
    values = Folder(f"{uri}/{FOLDER}").read_json(UNCHANGED) or {}
    if values.get("version") == commit.get("version"):
        return PartList.from_json(values)
    return PartList.of_commit(commit)


def read_manifest(snapshot: Snapshot) -> dict[str, Any]:
    """Return the source of a snapshot: format and files with digests, or a table's version.

    The files are known after the rows have been removed.

    Raises:
        WorkError: another program has removed a list of files.
        OSError: the table's folder cannot be read.
    """
    named = snapshot.source.get(LISTED_BY)
    if named is None:  # no files, or an older commit, which lists them itself
        return dict(snapshot.source)
    # A large file is in several parts.
    files = {file.path: file for id in named for file in _read_sources(snapshot, id)}
    ordered = [manifest_of(files[path]) for path in sorted(files)]
    return {"format": snapshot.source["format"], "files": ordered}


def _read_sources(snapshot: Snapshot, id: str) -> list[SourceFile]:
    """Return the files of the source that a part lists, or listed before it was removed."""
    for folder in (FOLDER, SOURCES):
        values = Folder(f"{snapshot.uri}/{folder}").read_json(f"{id}.json")
        if values is not None:
            return [SourceFile(**file) for file in values["sources"]]
    raise WorkError(
        f"which files snapshot {snapshot.version} of {snapshot.name!r} was made of is not known",
        seen=f"no file {id}.json in {snapshot.uri}/{FOLDER} or {SOURCES}",
        hint="restore the table's folder from a backup",
    )


def keep_sources(uri: str, names: Collection[str]) -> None:
    """Copy the lists of files of parts that are about to be removed, if a snapshot needs them.

    Args:
        uri: URI of the dataset's table.
        names: names of the part files.

    Raises:
        OSError: the table's folder cannot be written.
    """
    commits = [json.loads(each[SNAPSHOT]) for each in DeltaTable(uri).history() if SNAPSHOT in each]
    needed = {f"{id}.json" for commit in commits for id in commit["source"].get(LISTED_BY, ())}
    for name in needed.intersection(names):
        values = Folder(f"{uri}/{FOLDER}").read_json(name)
        if values is not None:
            Folder(f"{uri}/{SOURCES}").write_json(name, {"sources": values["sources"]})


def reading_of(spec: DatasetSpec) -> str:
    """Return the fingerprint of the settings that decide how rows are read."""
    settings = spec.model_dump(mode="json", exclude={"source", "split", "max_quarantine", "mode"})
    return sha256(json.dumps([FORMAT, settings], sort_keys=True).encode()).hexdigest()


@contextmanager
def stored_parts(uri: str, parts: Iterable[Part]) -> Iterator[None]:
    """Write parts, which a commit in the block names; remove them again if the block fails.

    Raises:
        OSError: the table's folder cannot be written.
    """
    filesystem, root = filesystem_of(uri)
    filesystem.create_dir(f"{root}{FOLDER}", recursive=True)
    paths = []
    try:
        for part in parts:
            paths.append(f"{root}{FOLDER}/{part.id}.json")
            with filesystem.open_output_stream(paths[-1]) as stream:
                stream.write(json.dumps(part.as_json()).encode())
        yield
    except BaseException:
        for path in paths:
            with suppress(OSError):
                filesystem.delete_file(path)
        raise


def parts_of_newest(table: DeltaTable, uri: str) -> tuple[PartList, tuple[Part, ...]] | str:
    """Return the parts of the newest snapshot of an open table, or why they are not known.

    A manifest may be missing, or the table may no longer have the files of the parts: another tool
    may have joined them. Files that another program added are in no part.

    Raises:
        OSError: the table's folder cannot be read.
    """
    newest = next((entry for entry in table.history() if SNAPSHOT in entry), {})
    listed = _newest_list(uri, newest)
    parts = load_parts(uri, listed.ids) if listed else None
    if listed is None or parts is None:
        return "the newest snapshot does not say which rows came from which file"
    files = pa.table(table.get_add_actions())["path"].to_pylist()
    if set(files_of(parts)) <= set(files):
        return listed, parts
    return "another program has rewritten the table"


def part_files(uri: str, commits: Iterable[dict[str, Any]]) -> frozenset[str]:
    """Return the names of the files that store the parts of some snapshots.

    Args:
        uri: URI of the dataset's table.
        commits: the snapshots' commits.
    """
    named = {commit["version"]: PartList.of_commit(commit) for commit in commits}
    later = Folder(f"{uri}/{FOLDER}").read_json(UNCHANGED) or {}
    lists = [each for each in named.values() if each is not None]
    if later.get("version") in named:
        lists.append(PartList.from_json(later))
    names = {f"{name}.json" for each in lists for name in each.ids}
    return frozenset({*names, UNCHANGED})


def load_parts(uri: str, ids: Iterable[str]) -> tuple[Part, ...] | None:
    """Return stored parts; None if one of them is missing.

    Raises:
        OSError: the table's folder cannot be read.
    """
    filesystem, root = filesystem_of(uri)
    paths = [f"{root}{FOLDER}/{name}.json" for name in ids]
    infos = filesystem.get_file_info(paths) if paths else []
    if any(info.type != fs.FileType.File for info in infos):
        return None
    parts = []
    for path in paths:
        with filesystem.open_input_stream(path) as stream:
            parts.append(Part.from_json(json.loads(stream.read())))
    return tuple(parts)
