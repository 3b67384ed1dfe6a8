"""Stores the serving profile of a version in MLflow, and reads it back.

The file is beside the version's evidence. It says with which settings the version is served, and a
release may depend on its proof, so it is signed as the version is: for this version, and these
files of it.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from millrace.models.common.bounded_files import bounded_text
from millrace.models.common.errors import InputError
from millrace.models.registry.artifact_store import StoredFolder
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.signing import fault_of_statement
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import EXTRA, ModelVersion, store_errors

FILE = "serving_profile.json"
PROFILE_TAG = "millrace.serving_profile"
"""Tag with the signature of the profile."""
GOAL_TAG = "millrace.slo"
"""Tag that says in words whether the goal is met."""
MOST_BYTES = 1 << 20
TIMES_FILE = "service_times.json"
MOST_TIMES_BYTES = 16 << 20


def store_profile(registry: Registry, version: ModelVersion, text: str, summary: str) -> None:
    """Store a version's serving profile in place of an earlier one.

    Args:
        registry: the registry.
        version: the version.
        text: the text of `serving_profile.json`.
        summary: whether the goal is met, in words.

    Raises:
        TransientError: MLflow does not answer.
    """
    _store(registry, version, FILE, text)
    signature = registry.trust.keys.sign_statement(_statement(version, text))
    registry.set_tags(version, {PROFILE_TAG: signature, GOAL_TAG: summary})


def store_times(registry: Registry, version: ModelVersion, text: str) -> str:
    """Store the service times of a version's profile, and return their SHA-256 for the profile.

    Raises:
        TransientError: MLflow does not answer.
    """
    _store(registry, version, TIMES_FILE, text)
    return hashlib.sha256(text.encode()).hexdigest()


def read_times(registry: Registry, version: ModelVersion, sha256: str) -> str:
    """Return the text of a version's service times.

    Args:
        registry: the registry.
        version: the version.
        sha256: the digest that the signed profile has.

    Raises:
        InputError: they are not those of the profile, or cannot be fetched.
        TransientError: MLflow does not answer.
    """
    kept = registry.cache / version.model / f"{version.version}-times-{sha256[:16]}.json"
    if not kept.exists():
        _fetch(registry, version, kept, TIMES_FILE, MOST_TIMES_BYTES)
    try:
        text = bounded_text(kept, MOST_TIMES_BYTES)
    except (OSError, ValueError) as error:
        raise _unreadable(version, error) from error
    if hashlib.sha256(text.encode()).hexdigest() != sha256:
        kept.unlink(missing_ok=True)
        raise _unreadable(version, f"{TIMES_FILE} is not the one of the profile")
    return text


def read_profile(registry: Registry, version: ModelVersion) -> str | None:
    """Return the text of a version's serving profile; None if it has none.

    Raises:
        InputError: it is not signed by a key that this home trusts, or cannot be fetched.
        TransientError: MLflow does not answer.
    """
    signature = version.tags.get(PROFILE_TAG)
    if not signature:
        return None
    kept = _cached(registry, version, signature)
    if not kept.exists():
        _fetch(registry, version, kept)
    try:
        text = bounded_text(kept, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise _unreadable(version, error) from error
    trusted = registry.trust.keys.trusted()
    fault = fault_of_statement(signature, _statement(version, text), trusted)
    if fault is not None:
        kept.unlink(missing_ok=True)  # a newer file may have been stored meanwhile
        raise _unreadable(version, fault)
    return text


def _store(registry: Registry, version: ModelVersion, name: str, text: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    with tempfile.TemporaryDirectory() as folder, store_errors(version):
        file = Path(folder, name)
        file.write_text(text)
        uri = _uri(registry, version)
        stored: Any = get_artifact_repository(uri, registry.tracking_uri)
        stored.log_artifact(str(file), EXTRA)


def _fetch(
    registry: Registry, version: ModelVersion, kept: Path, name: str = FILE, most: int = MOST_BYTES
) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with store_errors(version), tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        stored = StoredFolder(_uri(registry, version), registry.tracking_uri)
        size = stored.sizes(EXTRA).get(name)
        if size is None or size > most:
            seen = "no such file" if size is None else f"{size:,} bytes"
            raise _unreadable(version, seen)
        file = Path(folder, name)
        stored.fetch(f"{EXTRA}/{name}", size, file)
        file.replace(kept)


def _uri(registry: Registry, version: ModelVersion) -> str:
    store = client(registry.tracking_uri)
    return str(store.get_model_version_download_uri(version.model, str(version.version)))


def _cached(registry: Registry, version: ModelVersion, signature: str) -> Path:
    digest = hashlib.sha256(signature.encode()).hexdigest()[:16]
    return registry.cache / version.model / f"{version.version}-profile-{digest}.json"


def _statement(version: ModelVersion, text: str) -> bytes:
    values = {
        "statement": "serving profile",
        "model": version.model,
        "version": version.version,
        "digest": version.digest,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def _unreadable(version: ModelVersion, seen: object) -> InputError:
    return InputError(
        f"the serving profile of {version.title} cannot be used",
        seen=seen,
        valid=f"{FILE} as `millrace profile` stored it, signed by a key that this home trusts",
        hint=f"measure it again: millrace profile FILE --version {version.version}",
    )
