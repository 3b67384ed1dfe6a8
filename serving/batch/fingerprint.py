"""What a batch job's answers depend on, as one digest.

Work that a dead run left is taken up again only by a job with the same fingerprint: the same model,
the same input, the same parameters and the same code.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from millrace.serving.batch.job import Job

ROOT = Path(__file__).resolve().parents[2]
CODE = ("models", "serving")
ENGINES = ("onnxruntime", "openvino-genai", "pyarrow", "ray")


def fingerprint_of(job: Job, manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that the answers depend on, in hexadecimal.

    Args:
        job: the model and the parameters.
        manifest: the input: which version of a table, or which files with their digests.
    """
    parts = {
        "model": [job.model, job.version, job.digest],
        "input": manifest,
        "key": list(job.key),
        "parameters": job.parameters(),
        "code": code_digest(),
    }
    return digest_of_json(parts)


def digest_of_json(values: Any) -> str:
    """Return the SHA-256 of values as JSON in one form, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return a digest of the code that scores: ours, and the versions of what it stands on."""
    digest = hashlib.sha256()
    for file in sorted(file for name in CODE for file in (ROOT / name).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)}\0".encode())
        digest.update(file.read_bytes())
    for name in ENGINES:
        digest.update(f"{name} {version(name)}\n".encode())
    return digest.hexdigest()
