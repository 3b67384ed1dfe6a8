"""Step: what Triton serves becomes what the registry's champions say."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from export.certificate import Certificate, Stage, largest_difference
from models.arrays import Array
from models.errors import MillraceError, WorkError
from models.features import FEATURES
from models.onnx_session import OnnxSession
from models.pipeline import Pipeline, ServingSpec
from models.places import Endpoint, Places
from models.registry import CHAMPION, ModelVersion, Package, registry_of
from models.tracking import TrackedRun
from serving.client import TritonClient
from serving.reconcile import Outcome, reconcile
from serving.repository import Artifact, Repository
from tasks.progress import log
from tasks.report import certificate_table
from tasks.retry import step

LIVE_TOLERANCE = 1e-4
"""Of the largest answer, and of 1 where all answers are smaller: float32 rounds relatively."""


@step(timeout_seconds=600)
def reconcile_triton(places: Places) -> tuple[Outcome, ...]:
    """Bring every Triton server to the registry's champions.

    One model that fails does not stop the others; its outcome carries the error.
    """
    registry = registry_of(places)
    champions = registry.champions()

    def fetch(model: str, version: int, folder: Path) -> Artifact:
        package = registry.fetch(champions[model])
        labels = tuple(str(label) for label in package.encoding.labels)
        return Artifact(package.model, package.version.digest, labels, _serving(package))

    repository = Repository(places.model_repository, places.staging)
    desired = {name: version.version for name, version in champions.items() if version.digest}
    left_alone = champions.keys() - desired.keys()
    for name in left_alone:
        log.warning("the champion of %s was not registered by Millrace; it is left alone", name)
    return reconcile(desired, repository, places.triton, fetch, left_alone=left_alone)


@step(timeout_seconds=300)
def certify_released(places: Places, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    """Add the last stage to the certificate of what was just released.

    The golden batch goes through gRPC, row by row, and must equal the offline answers.

    Returns:
        The outcomes; one whose live answers differ carries the error.
    """
    return tuple(_certified(places, outcome) for outcome in outcomes)


def _certified(places: Places, outcome: Outcome) -> Outcome:
    if outcome.version is None or not outcome.changed or outcome.error is not None:
        return outcome
    registry = registry_of(places)
    champion = registry.by_alias(outcome.model, CHAMPION)
    if champion is None or champion.version != outcome.version:
        return outcome
    package = registry.fetch(champion)
    features, reference = package.golden()
    live = _live_answers(outcome.endpoint, champion, features)
    offline = OnnxSession(package.model).answer(features)
    difference = largest_difference(live, offline)
    certificate = Certificate.from_json(package.text("certificate.json"))
    stage = Stage("triton", largest_difference(live, reference))
    certificate = certificate.with_stage(stage)
    run = TrackedRun(places.tracking_uri, "", champion.run_id)
    run.log_text(certificate.to_json(), "certificate.json")
    registry.describe(champion, certificate_table(certificate))
    held = difference <= LIVE_TOLERANCE * max(1.0, float(np.abs(offline).max()))
    tags = {"millrace.status": "live" if held else "live, but its answers differ"}
    tags |= {"millrace.endpoint": outcome.endpoint.grpc}
    registry.set_tags(champion, {**tags, "millrace.live_difference": f"{difference:.2e}"})
    return outcome if held else replace(outcome, error=_differs(champion, difference))


def _differs(version: ModelVersion, difference: float) -> WorkError:
    return WorkError(
        f"Triton answers otherwise than {version.model} version {version.version} did offline",
        seen=f"largest difference {difference:.2e} on the golden batch",
        valid=f"at most {LIVE_TOLERANCE:.0e}",
        hint="see Triton's log; move the alias champion back to the version before",
    )


def _live_answers(endpoint: Endpoint, version: ModelVersion, features: Array) -> Array:
    with TritonClient(endpoint) as client:
        answers = [
            client.predict(version.model, {FEATURES: row[None]}, version=version.version)
            for row in features
        ]
    return np.concatenate([next(iter(answer.values())) for answer in answers])


def _serving(package: Package) -> ServingSpec:
    """Read how the version wants to be served from the pipeline file that is kept with it."""
    import yaml

    try:
        return Pipeline.model_validate(yaml.safe_load(package.text("pipeline.yaml"))).serving
    except ValueError as error:
        raise MillraceError(
            f"the pipeline file of {package.version.model} version {package.version.version} "
            "cannot be read",
            seen=error,
        ) from error
