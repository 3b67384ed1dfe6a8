"""What is kept with a registered version, read: its certificate and its pipeline file."""

import yaml

from millrace.export.certificate import Certificate
from millrace.export.language.language_certificate import LanguageCertificate
from millrace.models.bounded import bounded_yaml
from millrace.models.errors import InputError
from millrace.models.package import Package, unreadable
from millrace.models.pipeline import Pipeline
from millrace.models.places import Places
from millrace.models.snapshots import Snapshot, open_snapshot


def certificate_of(package: Package) -> Certificate:
    """Return a version's certificate.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return Certificate.from_json(package.text("certificate.json"))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise unreadable(package.version, "certificate", error) from error


def language_certificate_of(package: Package) -> LanguageCertificate:
    """Return the certificate of a language model's version.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return LanguageCertificate.from_json(package.text("certificate.json"))
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise unreadable(package.version, "certificate", error) from error


def pipeline_of(package: Package) -> Pipeline:
    """Return the pipeline file that made a version.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return Pipeline.model_validate(bounded_yaml(package.text("pipeline.yaml")))
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise unreadable(package.version, "pipeline file", error) from error


def certified_snapshot(places: Places, certificate: Certificate | LanguageCertificate) -> Snapshot:
    """Return the snapshot that a version was certified on.

    Raises:
        InputError: there is none, or it is another one now.
    """
    name, version = certificate.dataset, certificate.dataset_version
    snapshot = open_snapshot(places, name, version)
    if snapshot.digest != certificate.dataset_digest:
        raise InputError(
            f"version {version} of the dataset {name} is not the one that was certified",
            seen=snapshot.digest,
            valid=certificate.dataset_digest,
            hint="run the pipeline again",
        )
    return snapshot
