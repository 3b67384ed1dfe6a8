"""Reads untrusted YAML, JSON and npz files with limits on size, depth and repetition.

A YAML text of 400 bytes can expand to 10^9 values by aliases of aliases, a JSON text of a megabyte
can nest half a million lists, and an npz of 10 KiB can unpack to a terabyte of zeros. A file within
the limits is read in moments and fits into memory; any other raises `ValueError`.

`python -m millrace.models.common.bounded_files FOLDER` reads every such file in a folder. It runs
in a subprocess with limits on time and memory, so a file that still takes too long, or too much
memory, ends only that subprocess.
"""

import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

if TYPE_CHECKING:
    from millrace.models.common.arrays import Array

SECONDS = 60.0
MEMORY = 4 << 30
"""Bytes of address space. Of all files within the limits the largest JSON needs most: 1.5 GiB."""
YAML_BYTES = 256 << 10
YAML_DEPTH = 32
YAML_NODES = 20_000
"""Values in a YAML text, with all aliases expanded."""
YAML_SCALAR = 16 << 10
JSON_BYTES = 64 << 20
"""An `encoding.json` may hold a tokenizer of 35 MB."""
JSON_NODES = 8_000_000
NPZ_BYTES = 512 << 20
"""Size of an unpacked npz file."""


def bounded_text(path: Path, most: int = JSON_BYTES) -> str:
    """Return the text of a file.

    Raises:
        ValueError: the file is larger than `most` bytes, or not UTF-8.
        OSError: the file cannot be read.
    """
    with path.open("rb") as opened:
        data = opened.read(most + 1)
    if len(data) > most:
        raise ValueError(f"{path.name} is larger than {most:,} bytes")
    return data.decode()


def bounded_yaml(text: str, loader: type[yaml.CSafeLoader] = yaml.CSafeLoader) -> Any:
    """Return the value of a YAML text.

    Args:
        text: the text.
        loader: a safe loader.

    Raises:
        ValueError: the text exceeds a limit, or has a value that Python cannot construct.
        yaml.YAMLError: the text is not YAML.
    """
    check_yaml(text)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    except (RecursionError, OverflowError, AttributeError, TypeError, LookupError) as error:
        raise ValueError(f"a value cannot be read: {type(error).__name__}") from error


def check_yaml(text: str) -> None:
    """Raise ValueError if a YAML text exceeds a limit; construct no value.

    The depth is counted in the stream of events, which needs no recursion. An alias counts as many
    values as its anchor has, so no alias is expanded.
    """
    if len(text) > YAML_BYTES:
        raise ValueError(f"the YAML is longer than {YAML_BYTES:,} characters")
    counter = _ValueCounter()
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        try:
            counter.add(event)
        except ValueError as error:
            mark = event.start_mark
            raise ValueError(f"{error}, line {mark.line + 1}" if mark else f"{error}") from None


@dataclass
class _ValueCounter:
    """Counts the values of a YAML text by its events.

    Attributes:
        total: values so far, with aliases expanded.
        sizes: number of values in each anchor.
        opened: for each open mapping or list, its anchor and the total before it.
    """

    total: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    opened: list[tuple[str | None, int]] = field(default_factory=list)

    def add(self, event: yaml.Event) -> None:
        """Count an event; raise ValueError beyond a limit."""
        if isinstance(event, yaml.CollectionStartEvent):
            self.opened.append((event.anchor, self.total))
            self.total += 1
            if len(self.opened) > YAML_DEPTH:
                raise ValueError(f"the YAML is nested deeper than {YAML_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self.opened.pop()
            self.sizes |= {} if anchor is None else {anchor: self.total - before}
        elif isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in self.opened):
                raise ValueError(f"the alias *{event.anchor} contains itself")
            self.total += self.sizes.get(event.anchor or "", 1)
        if self.total > YAML_NODES:
            raise ValueError(f"the YAML has more than {YAML_NODES:,} values, with aliases expanded")

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        self.total += 1
        self.sizes |= {} if event.anchor is None else {event.anchor: 1}
        if len(event.value) > YAML_SCALAR:
            raise ValueError(f"a value is longer than {YAML_SCALAR:,} characters")


def bounded_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or exceeds a limit.
    """
    if len(text) > JSON_BYTES:
        raise ValueError(f"the JSON is longer than {JSON_BYTES:,} characters")
    if sum(map(text.count, ",[{")) > JSON_NODES:
        raise ValueError(f"the JSON has more than {JSON_NODES:,} values")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def bounded_arrays(path: Path) -> "Mapping[str, Array]":
    """Return the arrays of an npz file.

    Raises:
        ValueError: the file is not an npz, holds Python objects, or exceeds a limit.
        OSError: the file cannot be read.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(path) as packed:
            if sum(each.file_size for each in packed.infolist()) > NPZ_BYTES:
                raise ValueError(f"{path.name} unpacks to more than {NPZ_BYTES:,} bytes")
            for each in packed.infolist():
                with packed.open(each) as member:
                    _check_array(member, each)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path.name} is not an npz file: {error}") from error


def _check_array(member: Any, info: zipfile.ZipInfo) -> None:
    """Raise ValueError if an array has fewer bytes than its header says, or holds objects."""
    from numpy.lib import format as npy_format

    npy: Any = npy_format  # has no types
    version = npy.read_magic(member)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{info.filename} has an npy header of an unknown version, {version}")
    shape, _, dtype = readers[version](member)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects")
    bytes_needed = dtype.itemsize
    for length in shape:  # in Python integers, because NumPy's could overflow
        bytes_needed *= length
    if bytes_needed > info.file_size:
        raise ValueError(f"{info.filename} is smaller than the shape in its header, {shape}")


def require_readable(folder: Path, what: str) -> None:
    """Check in a subprocess that the evidence files of a version can be read.

    Args:
        folder: folder of the evidence files.
        what: name and number of the version, for the error.

    Raises:
        InputError: a file cannot be read, or exceeds a limit.
        TransientError: the subprocess was killed.
    """
    limits = Limits(SECONDS, MEMORY)
    try:
        run_in_subprocess(
            "millrace.models.common.bounded_files", [folder], limits, what="reading the files"
        )
    except TransientError:
        raise
    except WorkError as error:
        raise InputError(
            f"the evidence files of {what} cannot be read",
            seen=error.what,
            valid="files as `millrace run` registers them",
            hint="run the pipeline again with `millrace run`, which registers a new version",
        ) from error


def check_folder(folder: Path) -> None:
    """Read every JSON, YAML and npz file of a folder, within the limits.

    Raises:
        ValueError, OSError: a file cannot be read, or exceeds a limit.
    """
    for file in sorted(folder.iterdir()):
        try:
            if file.suffix == ".json":
                bounded_json(bounded_text(file))
            elif file.suffix == ".yaml":
                bounded_yaml(bounded_text(file, YAML_BYTES))
            elif file.suffix == ".npz":
                bounded_arrays(file)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"{file.name}: {' '.join(str(error).split())}") from error


def main() -> None:
    """Check the folder that the command line names."""
    check_folder(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
