"""What files are known by."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digest_of_all(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of the names and digests of several files, in hexadecimal."""
    lines = [f"{name} {digest_of(files[name])}\n" for name in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
