"""Step: what Triton serves becomes what the registry's champions say."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from export.certificate import Certificate, Stage
from models.answers import answers_of
from models.errors import InputError, MillraceError, WorkError
from models.gpu import these_ties
from models.guard import Credentials, Incumbent, refusal
from models.machine import this_machine
from models.package import ModelVersion, Package
from models.places import Places
from models.registry import Registry, registry_of
from models.snapshots import open_snapshot
from models.specs.rollout import RolloutSpec
from models.tracking import TrackedRun
from serving.actions import in_words
from serving.ledger import ledger_of
from serving.model_release import Request
from serving.observe import Observer
from serving.outcome import Outcome
from serving.plan import plan
from serving.reconcile import reconcile
from serving.repository import Artifact, Repository
from serving.standing import Release, Wish
from serving.status import Tags
from serving.trial import Expected
from tasks.compared import metric_of
from tasks.kept import certificate_of, pipeline_of
from tasks.progress import log
from tasks.report import certificate_table, release_table
from tasks.retry import step


@step(timeout_seconds=900)
def reconcile_triton(
    places: Places,
    asked_by: str,
    link: str = "",
    again: bool = False,
    models: Sequence[str] | None = None,
) -> tuple[Outcome, ...]:
    """Bring every Triton server to the registry's champions.

    One model that fails does not stop the others; its outcome carries the error.

    Args:
        places: where everything is.
        asked_by: who or what asked for it.
        link: where to read more about this release.
        again: try versions once more that were refused before.
        models: the models to release; None for all.
    """
    import mlflow  # noqa: F401 - before there are threads: several that import it see it half-made

    request = Request(asked_by, link, datetime.now(UTC) if again else None)
    repository = Repository(places.model_repository, places.staging)
    desk, ledger = RegistryDesk(places), ledger_of(places)
    return reconcile(desk, ledger, repository, places.triton, request, models)


@dataclass
class Lookout:
    """Tells whether a release would do anything now; what it read of versions it keeps.

    Attributes:
        places: returns where everything is now.
    """

    places: Callable[[], Places]
    _desk: "RegistryDesk | None" = field(default=None, init=False)

    def due(self) -> Mapping[str, str]:
        """Return what a release would begin with, by model, where none is under way."""
        places = self.places()
        if self._desk is None or self._desk.places != places:
            self._desk = RegistryDesk(places)
        repository = Repository(places.model_repository, places.staging)
        observer = Observer(self._desk, ledger_of(places), repository, places.triton)
        due: dict[str, str] = {}
        for model in sorted({action.model for action in plan(observer.world())}):
            with repository.exclusive(model, wait=False) as nothing_changes:
                if nothing_changes and (actions := plan(observer.world(model))):
                    due[model] = in_words(actions[0])
        return due


@dataclass
class RegistryDesk:
    """MLflow's side of a release.

    Attributes:
        places: where MLflow and the tables are.
    """

    places: Places
    _versions: dict[tuple[str, int], ModelVersion] = field(default_factory=dict, init=False)
    _packages: dict[tuple[str, int, str], Package] = field(default_factory=dict, init=False)

    @property
    def registry(self) -> Registry:
        """The registry."""
        return registry_of(self.places)

    def wishes(self, model: str | None = None) -> Mapping[str, Wish]:
        """Return the champion of each model or of one; without a digest if we did not register it.

        Raises:
            TransientError: MLflow does not answer.
        """
        champions = self.registry.champions(model)
        self._versions |= {(each.model, each.version): each for each in champions.values()}
        return {name: Wish(found.version, found.digest) for name, found in champions.items()}

    def tags(self, model: str, version: int) -> Mapping[str, str] | None:
        """Return the tags of a version; None if it was deleted."""
        try:
            found = self.registry.version(model, version)
        except InputError:
            return None
        self._versions[model, version] = found
        return found.tags

    def fetch(self, model: str, version: int) -> Artifact:
        """Bring a version to this machine, its digest checked."""
        package = self._package(model, version)
        labels = tuple(str(label) for label in package.encoding.labels)
        serving = pipeline_of(package).serving
        tokenizer = package.encoding.tokenizer
        return Artifact(
            *(package.model, package.version.digest, labels, serving),
            tokenizer.json if tokenizer else None,
        )

    def verify(self, model: str, version: int, previous: int | None) -> None:
        """Raise unless the version is what its pipeline requires of a champion."""
        package = self._package(model, version)
        require, certificate = pipeline_of(package).promotion.require, certificate_of(package)
        incumbent = None
        compared = previous not in (None, version) and require.max_metric_drop is not None
        if compared and previous is not None and self.tags(model, previous) is not None:
            incumbent = Incumbent(previous, self._metric(package, model, previous))
        chosen = certificate.stage(certificate.candidate)
        credentials = Credentials(
            passed=certificate.passed and certificate.digest == package.version.digest,
            metric=chosen.metric if chosen else None,
            metric_name=certificate.metric_name,
            author=self.registry.author(package.version),
            approved_by=package.version.tags.get("millrace.approved_by", "").strip(),
        )
        if (reason := refusal(require, credentials, incumbent)) is not None:
            raise WorkError(reason)

    def expected(self, model: str, version: int) -> Expected:
        """Return what the version must answer: its golden batch, and what was certified of it."""
        package = self._package(model, version)
        features, answers = package.golden()
        certificate = certificate_of(package)
        chosen = certificate.stage(certificate.candidate)
        return Expected(
            inputs=package.golden_request(),
            graph_inputs={package.encoding.input.name: package.encoding.input.trimmed(features)},
            answers={answers_of(package.encoding).output: answers},
            difference=chosen.golden_difference if chosen else 0.0,
            latency_slo_ms=pipeline_of(package).serving.latency_slo_ms,
            caution=_caution(certificate),
        )

    def rollout(self, model: str, version: int) -> RolloutSpec:
        """Return how the version comes to all traffic: at once where its files say nothing."""
        try:
            return pipeline_of(self._package(model, version)).rollout
        except InputError:
            return RolloutSpec()

    def write(self, model: str, version: int, tags: Tags) -> None:
        """Set tags of a version; None removes one."""
        self.registry.change_tags(self._version(model, version), tags)

    def tell(self, release: Release) -> None:
        """Keep the evidence of an event in the version's description and in its run.

        The release table has it already, so MLflow's not taking it stops nothing.
        """
        from mlflow.exceptions import MlflowException

        said = f"{release.model} version {release.version}: {release.kind}"
        log.info("%s%s", said, f", {release.reason}" if release.reason else "")
        if release.kind not in ("live", "refused"):
            return
        try:
            self._describe(release)
        except (MillraceError, MlflowException, OSError) as error:
            log.warning("MLflow has no evidence of this: %s", str(error).splitlines()[0])

    def _describe(self, release: Release) -> None:
        version = self._version(release.model, release.version)
        run = TrackedRun(self.places.tracking_uri, "", version.run_id)
        texts = [release_table(release)]
        with suppress(InputError):  # it may have been refused for having no certificate
            certificate = certificate_of(self._package(release.model, release.version))
            if (difference := release.evidence.get("difference")) is not None:
                certificate = certificate.with_stage(Stage("triton", float(difference)))
                run.log_text(certificate.to_json(), "certificate.json")
            texts.insert(0, certificate_table(certificate))
        self.registry.describe(version, "\n\n".join(texts))
        run.log_text(json.dumps(_plain(release), indent=1), f"releases/{release.id}.json")

    def _metric(self, package: Package, model: str, live: int) -> float | None:
        """Return the live version's metric on the test split that the new one was certified on."""
        certificate = certificate_of(package)
        try:
            dataset, version = certificate.dataset, certificate.dataset_version
            snapshot = open_snapshot(self.places, dataset, version)
            incumbent = self._package(model, live)
            return metric_of(incumbent, pipeline_of(package), snapshot, certificate.metric_name)
        except (MillraceError, KeyError) as error:
            if isinstance(error, MillraceError) and error.transient:
                raise
            log.warning("version %s cannot be compared: %s", live, error)
            return None

    def _package(self, model: str, version: int) -> Package:
        """Return a version's files; their digest is checked once in a release."""
        found = self._version(model, version)
        if (model, version, found.digest) not in self._packages:
            self._packages[model, version, found.digest] = self.registry.fetch(found)
        return self._packages[model, version, found.digest]

    def _version(self, model: str, version: int) -> ModelVersion:
        known = self._versions.get((model, version))
        if known is None:
            known = self._versions[model, version] = self.registry.version(model, version)
        return known


def _plain(release: Release) -> dict[str, object]:
    return {**vars(release), "at": release.at.isoformat(), "evidence": dict(release.evidence)}


def _caution(certificate: Certificate) -> str:
    """Say so where the form was chosen on another kind of machine than serves it."""
    chosen, here = certificate.stage(certificate.candidate), this_machine().kind
    if chosen and chosen.ties and chosen.ties != (ties := str(these_ties() or here)):
        return f"it was certified with {chosen.ties}; this machine has {ties}"
    if certificate.machine_kind in ("", here):
        return ""
    return f"its form was chosen on {certificate.machine}; this machine has {here}"
