"""SHA-256 digests of single files, and of models of one or more files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

ONNX_FILE = "model.onnx"
"""Name of the only file of a model that is an ONNX graph."""


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digest_of_all(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of the names and digests of several files, in hexadecimal."""
    return _digest_of_digests({name: digest_of(file) for name, file in files.items()})


def digest_of_model(digests: Mapping[str, str]) -> str:
    """Return the digest of a model: of its ONNX file if that is its only file, else of all files.

    Args:
        digests: the SHA-256 of each file of the model, by name.
    """
    return digests[ONNX_FILE] if set(digests) == {ONNX_FILE} else _digest_of_digests(digests)


def _digest_of_digests(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of names and digests, in hexadecimal."""
    lines = [f"{name} {digests[name]}\n" for name in sorted(digests)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
