"""The fingerprint of a batch job: a digest of everything that its predictions depend on.

The work of a killed run is resumed only by a job with the same fingerprint: the same model, input,
parameters and code.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace.serving.batch.job import Job

ROOT = Path(__file__).resolve().parents[2]
CODE = ("models", "serving")
ENGINES = ("onnxruntime", "pyarrow", "ray")
"""Packages whose versions are part of the code's digest; every installation has them. The version
of an optional engine, such as vLLM, is part of the parameters of its jobs instead.
"""


def fingerprint_of(job: Job, manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything that the predictions depend on, in hexadecimal.

    Args:
        job: the model and the parameters.
        manifest: describes the input: the version of a table, or files with their digests.
    """
    return digest_of_json(
        {
            "model": [job.model, job.version, job.digest],
            "input": manifest,
            "key": list(job.key),
            "parameters": job.parameters(),
            "code": code_digest(),
        }
    )


def digest_of_json(values: Any) -> str:
    """Return the SHA-256 of values as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the scoring code: Millrace's source, and the versions of its engines."""
    digest = _hash_sources(CODE)
    for name in ENGINES:
        digest.update(f"{name} {version(name)}\n".encode())
    return digest.hexdigest()


def digest_of_sources(folders: Iterable[str]) -> str:
    """Return a digest of the Python files in some of Millrace's top-level folders."""
    return _hash_sources(folders).hexdigest()


def _hash_sources(folders: Iterable[str]) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for file in sorted(file for name in folders for file in (ROOT / name).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)}\0".encode())
        digest.update(file.read_bytes())
    return digest
