"""Step: the last stage of a certificate: the live server, asked what it was certified to answer."""

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import Package
from millrace.serving.triton.client import TritonClient
from millrace.tasks.kinds.steps import LiveCertificate, steps_of

LIVE_FILE = "certificate-live.json"
"""Beside the certificate, which the next release writes again."""


def certify_live(installation: Installation, model: str) -> LiveCertificate:
    """Ask the live version what it was certified to answer, and measure its files again.

    The certificate with the live stage is logged to the run that made the version.

    Raises:
        InputError: the model is not served; its files are not those that were registered; or the
            snapshot is another one now.
        TransientError: Triton or MLflow does not answer.
        WorkError: the model does not answer.
    """
    with TritonClient(installation.triton[0]) as client:
        package = _live_package(installation, client, model)
        found = steps_of(package.version.kind).certify(installation, client, package)
    run = TrackedRun(installation.tracking_uri, "", package.version.run_id)
    run.log_text(found.certificate.to_json(), LIVE_FILE)
    return found


def _live_package(installation: Installation, client: TritonClient, model: str) -> Package:
    """Return the registered files of the version that is live."""
    number = client.live_version(model)
    if number is None:
        raise InputError(
            f"Triton does not serve {model!r}",
            hint="set the alias champion in the MLflow UI, then run: millrace release",
        )
    registry = registry_of(installation)
    return registry.fetch(registry.version(model, number))
