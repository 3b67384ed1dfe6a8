"""Reads what belongs to a registered version: its certificate, pipeline file and snapshot."""

from functools import lru_cache
from typing import TypeVar

import yaml

from millrace.export.certificate import Certificate
from millrace.models.common.bounded_files import bounded_yaml
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot, open_snapshot
from millrace.models.registry.version_files import Package, unreadable
from millrace.tasks.kinds.steps import CertifiedFigures

C = TypeVar("C", bound=Certificate)


def figures_of(certificate: Certificate) -> CertifiedFigures:
    """Return what the chosen variant of a certificate was measured to be."""
    name = certificate.candidate
    variant = next((each for each in certificate.forms if each.name == name), None)
    speed, stage = variant and variant.speed, certificate.chosen
    return CertifiedFigures(
        name,
        getattr(stage, "size_bytes", None),
        speed.latency_ms if speed else None,
        speed.per_second if speed else None,
        certificate.machine,
    )


def certificate_of(package: Package, of_kind: type[C]) -> C:
    """Return a version's certificate.

    Args:
        package: the version's files.
        of_kind: the certificate class of the version's kind.

    Raises:
        InputError: the certificate cannot be read.
    """
    try:
        return of_kind.from_json(package.text("certificate.json"))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise unreadable(package.version, "certificate", error) from error


def pipeline_of(package: Package) -> Pipeline:
    """Return the pipeline file that made a version.

    Raises:
        InputError: the pipeline file cannot be read.
    """
    try:
        return _parse_pipeline(package.text("pipeline.yaml"))
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise unreadable(package.version, "pipeline file", error) from error


@lru_cache(maxsize=64)
def _parse_pipeline(text: str) -> Pipeline:
    """Return the pipeline of a text; the watch of `up` reads the same few texts every 5 s."""
    return Pipeline.model_validate(bounded_yaml(text))


def certified_snapshot(installation: Installation, certificate: Certificate) -> Snapshot:
    """Return the snapshot that a version was certified on.

    Raises:
        InputError: there is no such snapshot, or its digest is not the certified one.
    """
    name, version = certificate.dataset, certificate.dataset_version
    snapshot = open_snapshot(installation, name, version)
    if snapshot.digest != certificate.dataset_digest:
        raise InputError(
            f"the digest of version {version} of the dataset {name} is not the one in the model's "
            "certificate",
            seen=snapshot.digest,
            valid=certificate.dataset_digest,
            hint="run the pipeline again",
        )
    return snapshot
