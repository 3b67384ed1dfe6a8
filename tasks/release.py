"""Step: make every Triton server serve the champions of the registry."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from millrace.models.common.errors import InputError, MillraceError, WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.printable import one_line
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.registry.gates import Comparison, Credentials, Incumbent, refusal
from millrace.models.registry.mlflow_pages import describe_promotion, describe_verdict
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.serving_profiles import PROFILE_TAG
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import (
    CANDIDATE_TAG,
    CERTIFICATE_TAG,
    COMPARED_TAG,
    FAILED,
    ModelVersion,
    Package,
)
from millrace.serving.profile.record import ServingProfile
from millrace.serving.release.actions import Action, describe_action
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.plan import plan
from millrace.serving.release.reconcile import reconcile
from millrace.serving.release.release_state import DesiredVersion, Release
from millrace.serving.release.version_check import VersionCheck
from millrace.serving.release.version_tags import Tags
from millrace.serving.replicas.files import servers_of, unmark_ready
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.alerts import REFUSED, Event, emit
from millrace.tasks.feedback_history import live_figures
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import VersionEvidence, steps_of
from millrace.tasks.profiled_version import applies_here, fault_here, load_profile, profiled
from millrace.tasks.progress import log
from millrace.tasks.reports.run_report import release_table
from millrace.tasks.retry import step


@step(timeout_seconds=900)
def reconcile_triton(
    installation: Installation,
    asked_by: str,
    link: str = "",
    again: bool = False,
    models: Sequence[str] | None = None,
) -> tuple[Outcome, ...]:
    """Make every Triton server serve the champions of the registry.

    One model that fails does not stop the others; its outcome carries the error.

    Args:
        installation: where registry, tables and servers are.
        asked_by: who or what requested the release.
        link: a link to more about this release; may be empty.
        again: whether to try versions again that were refused before.
        models: the models to release; None for all.
    """
    import mlflow  # noqa: F401 - before threads start, which could see it half-imported

    request = Request(asked_by, link, datetime.now(UTC) if again else None)
    repository = Repository(installation.model_repository, installation.staging)
    registry, ledger = MlflowRegistry(installation), ledger_of(installation)
    outcomes = reconcile(
        *(registry, ledger, repository, partial(servers_of, installation), request),
        *(models, installation.logs, partial(_note_missed, installation)),
    )
    for event in refusals(outcomes):
        emit(event)
    return outcomes


def _note_missed(installation: Installation, endpoint: Endpoint) -> None:
    """Let a replica that missed a release get no requests until it has caught up."""
    if endpoint.replica is not None:
        unmark_ready(installation.run, endpoint.replica)


def refusals(outcomes: Iterable[Outcome]) -> list[Event]:
    """Return an event for each model whose version was refused by this release."""
    found = dict[str, Event]()
    for each in outcomes:
        if each.error is not None and not each.error.transient and not each.known:
            reason = f": {each.error.seen}" if each.error.seen else ""
            details = {"version": each.version, "live": each.previous}
            text = f"{each.error.what}{reason}"
            found.setdefault(each.model, Event(REFUSED, each.model, text, details))
    return [*found.values()]


@dataclass
class ReleaseCheck:
    """Tells whether a release would do anything now; caches what it read about versions.

    Attributes:
        installation: returns the current installation.
    """

    installation: Callable[[], Installation]
    _registry: "MlflowRegistry | None" = field(default=None, init=False)
    _faults: dict[str, str] = field(default_factory=dict, init=False)

    def due(self) -> Mapping[str, str]:
        """Return the first action that a release would run, in words, by model."""
        return {model: describe_action(action) for model, action in self.actions().items()}

    def actions(self) -> Mapping[str, Action]:
        """Return a release's first action by model, for models that no release is changing."""
        installation = self.installation()
        if self._registry is None or self._registry.installation != installation:
            self._registry = MlflowRegistry(installation)
        observer = observer_of(installation, self._registry)
        repository = observer.repository
        cluster = observer.observe()
        self._log_faults(cluster.faults)
        due: dict[str, Action] = {}
        for model in sorted({action.model for action in plan(cluster)}):
            with repository.exclusive(model, wait=False) as nothing_changes:
                if nothing_changes and (actions := plan(observer.observe(model))):
                    due[model] = actions[0]
        return due

    def _log_faults(self, faults: Mapping[str, MillraceError]) -> None:
        """Log why models cannot be observed; each reason only once."""
        known, self._faults = self._faults, {model: str(each) for model, each in faults.items()}
        for model, fault in self._faults.items():
            if known.get(model) != fault:
                log.error("%s", fault)


def observer_of(installation: Installation, registry: "MlflowRegistry") -> Observer:
    """Return what reads the state of an installation's registry, release table and servers."""
    repository = Repository(installation.model_repository, installation.staging)
    servers = partial(servers_of, installation)
    return Observer(registry, ledger_of(installation), repository, servers)


@dataclass
class MlflowRegistry:
    """The `ModelRegistry` of a release, in MLflow.

    Attributes:
        installation: where MLflow and the tables are.
        given: the pipeline that the user gave to a command, whose `promotion.require.signed`
            applies; None: no pipeline was given.
    """

    installation: Installation
    given: Pipeline | None = None
    _versions: dict[tuple[str, int], ModelVersion] = field(default_factory=dict, init=False)
    _packages: dict[tuple[str, int, str], Package] = field(default_factory=dict, init=False)
    _metrics: dict[tuple[str, int, int], float | None] = field(default_factory=dict, init=False)
    _checks: dict[tuple[str, int, str], VersionCheck] = field(default_factory=dict, init=False)
    _profiles: dict[tuple[str, int, str], ServingProfile | None] = field(
        default_factory=dict, init=False
    )

    @property
    def registry(self) -> Registry:
        """The registry."""
        return registry_of(self.installation, self.given)

    def desired_versions(self, model: str | None = None) -> Mapping[str, DesiredVersion]:
        """Return the champion of each model, by model; if `model` is given, only its champion.

        A champion that another tool registered has no digest.

        Raises:
            WorkError: MLflow does not answer, or fails.
        """
        champions = self.registry.champions(model)
        self._versions |= {(each.model, each.version): each for each in champions.values()}
        return {
            name: DesiredVersion(
                found.version, found.digest, found.tags, self._profile_digest(found)
            )
            for name, found in champions.items()
        }

    def _profile_digest(self, version: ModelVersion) -> str:
        """Return the digest of the serving profile that the version is served by; empty if none."""
        profile = self.profile(version.model, version.version)
        return profile.sha256 if profile is not None else ""

    def profile(self, model: str, version: int) -> ServingProfile | None:
        """Return the serving profile that a version is served by; None if none holds here."""
        found = self._profile(model, version)
        digest = self._version(model, version).digest
        return found if found is not None and applies_here(found, digest) else None

    def note(self, version: ModelVersion) -> None:
        """Keep a version as it is now in the registry, so that it is not asked for again."""
        self._versions[version.model, version.version] = version

    def describe_promotion(self, model: str) -> str:
        """Return how the newest version of a model that passed its gates becomes champion."""
        versions = self.registry.newest_versions(model)
        passed = [each.version for each in versions if not has_failed(each.tags)]
        newest, failed = next(iter(passed), None), len(versions) - len(passed)
        return describe_promotion(model, newest, self.installation.tracking_uri, failed)

    def tags(self, model: str, version: int) -> Mapping[str, str] | None:
        """Return the tags of a version; None if it was deleted."""
        try:
            found = self.registry.version(model, version)
        except InputError:
            return None
        self._versions[model, version] = found
        return found.tags

    def fetch(self, model: str, version: int) -> Artifact:
        """Download a version to this machine, check its digest, and apply its serving profile."""
        artifact = self._evidence(model, version).artifact()
        return profiled(artifact, self._profile(model, version))

    def verify(self, model: str, version: int, previous: int | None) -> None:
        """Raise unless the version meets its pipeline's requirements for a champion."""
        if (reason := self.refusal(model, version, previous)) is not None:
            raise WorkError(reason)

    def refusal(
        self, model: str, version: int, previous: int | None, *, unapproved: bool = False
    ) -> str | None:
        """Return why the version may not be champion; None if it meets its pipeline's requirements.

        Args:
            model: the model.
            version: its version.
            previous: the version that it would replace; None if there is none.
            unapproved: whether the version may still lack what only a registered one can get: an
                approval, labels of its own predictions, and a serving profile.
        """
        package = self._package(model, version)
        trust = self.registry.trust
        unsigned = trust.fault(package.version) or ""
        require = pipeline_of(package).promotion.require
        if unsigned:  # then its pipeline file cannot be trusted either
            require = trust.owners_requirement(model)
        if unapproved:
            later = {"approval": False, "live_metric": None, "slo": False}
            require = require.model_copy(update=later)
        measured = self._evidence(model, version).measured()
        incumbent = None
        compared = previous not in (None, version) and require.max_metric_drop is not None
        if compared and previous is not None and self.tags(model, previous) is not None:
            incumbent = Incumbent(previous, self._metric(model, version, previous))
        credentials = Credentials(
            passed=measured.passed,
            metric=measured.metric,
            metric_name=measured.name,
            smaller_is_better=measured.smaller_is_better,
            author=self.registry.author(package.version) if require.approval else "",
            tags=package.version.tags,
            unsigned=unsigned,
            live=live_figures(self.installation, model, version) if require.live_metric else None,
            unproved=self._unproved(package) if require.slo else "",
        )
        return refusal(require, credentials, incumbent)

    def comparison(
        self, model: str, version: int, other: int, *, is_live: bool
    ) -> Comparison | None:
        """Return how the version `other` compares with `version`; None if `other` was deleted."""
        if (tags := self.tags(model, other)) is None:
            return None
        name, metric = self._evidence(model, version).measured().name, None
        size: int | None = None
        with suppress(InputError):  # another tool registered `other`, or its files are gone
            files = self._package(model, other).files.values()
            size = sum(file.stat().st_size for file in files)
            metric = self._metric(model, version, other)
        candidate = tags.get(CANDIDATE_TAG, "")
        return Comparison(other, is_live, name, metric, candidate, size)

    def package(self, version: ModelVersion) -> Package:
        """Return the files of a version that was found, whose digest is checked once."""
        self.note(version)
        return self._package(version.model, version.version)

    def version_check(self, model: str, version: int) -> VersionCheck:
        """Return the check of the version's answers against its certificate."""
        key = (model, version, self._version(model, version).digest)
        if key not in self._checks:
            self._checks[key] = self._evidence(model, version).expected()
        return self._checks[key]

    def compares_quickly(self, version: ModelVersion) -> bool:
        """Return whether versions of its kind answer a test split in seconds."""
        return self._evidence(version.model, version.version).compares_quickly

    def rollout(self, model: str, version: int) -> RolloutSpec:
        """Return the version's rollout settings; the defaults if its files cannot be read."""
        try:
            pipeline = pipeline_of(self._package(model, version))
        except InputError:
            return RolloutSpec()
        slo = pipeline.serving.slo
        return pipeline.rollout.with_goal(None if slo is None else slo.p99_ms)

    def write_tags(self, model: str, version: int, tags: Tags) -> None:
        """Set tags of a version; a value of None removes the tag."""
        self.registry.change_tags(self._version(model, version), tags)

    def report(self, release: Release) -> None:
        """Write the evidence of an event to the version's description and to its MLflow run.

        An error of MLflow is only logged, because the release table already has the evidence.
        """
        from mlflow.exceptions import MlflowException

        said = f"{one_line(release.model)} version {release.version}: {release.kind}"
        log.info("%s%s", said, f", {release.reason}" if release.reason else "")
        if release.kind not in ("live", "refused"):
            return
        try:
            self._describe(release)
        except (MillraceError, MlflowException, OSError) as error:
            why = str(error).splitlines()[0]
            log.warning("could not write the evidence of this release to MLflow: %s", why)

    def _describe(self, release: Release) -> None:
        version = self._version(release.model, release.version)
        run = TrackedRun(self.installation.tracking_uri, "", version.run_id)
        compared = self.tags(release.model, release.version) or {}
        texts = [release_table(release)]
        if verdict := compared.get(COMPARED_TAG):
            texts.insert(0, describe_verdict(verdict))
        with suppress(InputError):  # a version may be refused because it has no certificate
            difference = release.evidence.get("difference")
            live = None if difference is None else float(str(difference))
            evidence, certificate = self._evidence(release.model, release.version).describe(live)
            if live is not None:
                run.log_text(certificate, "certificate.json")
            texts.insert(0, evidence)
        self.registry.describe(version, "\n\n".join(texts))
        run.log_text(json.dumps(_plain(release), indent=1), f"releases/{release.id}.json")

    def _metric(self, model: str, version: int, live: int) -> float | None:
        """Return the metric of version `live` on the test split that `version` was certified on."""
        if (model, version, live) not in self._metrics:
            self._metrics[model, version, live] = self._measure_on_split(model, version, live)
        return self._metrics[model, version, live]

    def _measure_on_split(self, model: str, version: int, live: int) -> float | None:
        try:
            return self._evidence(model, version).metric_of(self._package(model, live))
        except (MillraceError, KeyError) as error:
            if isinstance(error, MillraceError) and error.transient:
                raise
            log.warning(
                "%s version %s cannot be compared with version %s: %s", model, version, live, error
            )
            return None

    def _evidence(self, model: str, version: int) -> VersionEvidence:
        package = self._package(model, version)
        return steps_of(package.version.kind).evidence(package, self.installation)

    def _profile(self, model: str, version: int) -> ServingProfile | None:
        """Return the version's serving profile; None if there is none, or none that can be used."""
        found = self._version(model, version)
        key = (model, version, found.tags.get(PROFILE_TAG, ""))
        if key not in self._profiles:
            try:
                self._profiles[key] = load_profile(self.registry, found)
            except InputError as error:
                log.warning("%s: %s", error.what, error.seen)
                self._profiles[key] = None
        return self._profiles[key]

    def lacked_proof(self, version: ModelVersion) -> str:
        """Return why a version lacks the serving profile that its release needs; empty if not.

        A version that this home does not trust lacks more than that, and its file is not followed.
        """
        package = self.package(version)
        if self.registry.trust.fault(version) or not pipeline_of(package).promotion.require.slo:
            return ""
        return self._unproved(package)

    def _unproved(self, package: Package) -> str:
        """Return why no serving profile proves the version's goal here; empty if one does."""
        try:
            profile = load_profile(self.registry, package.version)
        except InputError as error:
            return f"its serving profile cannot be used: {error.seen}"
        goal = pipeline_of(package).serving.slo
        artifact = steps_of(package.version.kind).evidence(package, self.installation).artifact()
        return fault_here(profile, goal, artifact) or ""

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


def has_failed(tags: Mapping[str, str]) -> bool:
    """Return whether a version's tags say that it did not pass its gates."""
    return tags.get(CERTIFICATE_TAG, "").startswith(FAILED)


def _plain(release: Release) -> dict[str, object]:
    return {**vars(release), "at": release.at.isoformat(), "evidence": dict(release.evidence)}
