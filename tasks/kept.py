"""What is kept with a registered version, read: its certificate and its pipeline file."""

import yaml

from export.certificate import Certificate
from models.errors import InputError
from models.package import Package
from models.pipeline import Pipeline


def certificate_of(package: Package) -> Certificate:
    """Return a version's certificate.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return Certificate.from_json(package.text("certificate.json"))
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(package, "certificate", error) from error


def pipeline_of(package: Package) -> Pipeline:
    """Return the pipeline file that made a version.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return Pipeline.model_validate(yaml.safe_load(package.text("pipeline.yaml")))
    except (ValueError, yaml.YAMLError) as error:
        raise _unreadable(package, "pipeline file", error) from error


def _unreadable(package: Package, what: str, error: Exception) -> InputError:
    return InputError(
        f"the {what} of {package.version.model} version {package.version.version} cannot be read",
        seen=str(error).splitlines()[0],
        hint="register the model again",
    )
