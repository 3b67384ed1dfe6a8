"""Profile a version: find its serving configuration for a goal, prove it, and store it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.models.common.counted import short
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import Machine, measure_other_load, this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.slo_spec import SloSpec
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.serving_profiles import FILE, store_profile, store_times
from millrace.models.registry.tracking import TrackedRun, tracked_run
from millrace.models.registry.version_files import CANDIDATE_TAG, CHALLENGER, ModelVersion
from millrace.serving.profile.batch_workload import BatchWorkload
from millrace.serving.profile.engine import engine_of
from millrace.serving.profile.profiler import Found, Profiler
from millrace.serving.profile.record import Configuration, ServingProfile, bounds_of, easier_in
from millrace.serving.profile.scaler import scaler_figures
from millrace.serving.profile.search import BatchConfiguration
from millrace.serving.profile.stored_profile import is_replaced, other_goal
from millrace.serving.profile.stream_workload import StreamWorkload
from millrace.serving.profile.workload import Considered, Workload, late_after, never_late
from millrace.serving.triton.version_config import triton_kind
from millrace.serving.triton.version_folder import Artifact
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.profile_measurements import KeptTimes, alone
from millrace.tasks.profiled_version import load_profile
from millrace.tasks.progress import log
from millrace.tasks.promotion_cards import write_card
from millrace.tasks.release import MlflowRegistry, has_failed
from millrace.tasks.reports.drawing import drawing_process
from millrace.tasks.reports.profile_plots import ProfilePoint, profile_figure
from millrace.tasks.run_names import code_version

if TYPE_CHECKING:
    from collections.abc import Mapping

BUSY = 0.1
"""Share of the cores in use by others from which a profile warns."""
GOAL = "serving: {slo: {p99_ms: 20, rate: 200}}"


@dataclass(frozen=True)
class Profiled:
    """What `millrace profile` found.

    Attributes:
        profile: the profile.
        found: all configurations, and the measurements.
        run_id: the MLflow run with the measurements.
        kept: the earlier profile that the version keeps instead; None if the new one is stored.
        other_goal: why the new one does not prove the goal of the version's own pipeline file;
            empty if it does, or if that has none.
    """

    profile: ServingProfile
    found: Found
    run_id: str
    kept: ServingProfile | None = None
    other_goal: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "profile": self.profile.model_dump(),
            "is_proved": self.profile.is_proved,
            "is_stored": self.kept is None,
            "run_id": self.run_id,
            "configurations": [
                {
                    **each.configuration.settings,
                    "capacity": each.most,
                    "is_measured": each.measured is not None,
                    **each.at_goal,
                }
                for each in self.found.considered
            ],
        }


def profile_version(
    pipeline: Pipeline,
    installation: Installation,
    number: int | None = None,
    anew: bool = False,
    minutes: float | None = None,
) -> Profiled:
    """Find the serving configuration of a version for the goal of a pipeline, and store it.

    Args:
        pipeline: the pipeline, with `serving.slo`.
        installation: where the registry is.
        number: the version's number; None for the challenger, or else the newest that passed.
        anew: whether to measure again what was measured before.
        minutes: after how many no further configuration is tried; None to try all that may be best.

    Raises:
        InputError: there is no goal, or no such version.
        TransientError: MLflow does not answer.
        WorkError: the model does not answer.
    """
    goal = goal_of(pipeline)
    registry = registry_of(installation, pipeline)
    version = find_version(registry, pipeline.name, number)
    package = registry.fetch(version)
    steps = steps_of(version.kind)
    artifact = steps.evidence(package, installation).artifact()
    _require_backend(artifact, version)
    machine, engine = this_machine(), engine_of(artifact)
    own = pipeline_of(package).serving.slo
    tags = code_version(pipeline.folder)
    with (
        alone(installation),
        tracked_run(installation, pipeline.name, tags, system_metrics=False) as run,
    ):
        _warn_if_busy()
        if own is not None and (easier := easier_in(goal, own, goal.rate)) is not None:
            log.warning("the version's own pipeline file has another goal: %s", easier)
        run.rename(f"profile {version.title}")
        run.log_params({"version": version.version, **_flat(goal)})
        kept = KeptTimes(installation, run, version, machine, engine, goal, anew=anew)
        is_late = never_late if minutes is None else late_after(60 * minutes)
        workload = _workload(artifact, steps.load_rows(package), goal, kept, machine.cores, is_late)
        found = Profiler(workload, goal, log.info, is_late).run()
        profile = make_profile(version, goal, found, machine, engine)
        earlier = _earlier(registry, version)
        if not is_replaced(earlier, profile, own):
            _log(run, profile, found)
            return Profiled(profile, found, run.run_id, earlier)
        if (text := _times_text(workload, found)) is not None:
            digest = store_times(registry, version, text)
            profile = profile.model_copy(update={"service_times": digest})
        _log(run, profile, found)
        store_profile(registry, version, profile.to_json(), profile.summary())
    write_card(MlflowRegistry(installation), registry.version(version.model, version.version))
    return Profiled(profile, found, run.run_id, other_goal=other_goal(profile, own))


def goal_of(pipeline: Pipeline) -> SloSpec:
    """Return the goal of a pipeline.

    Raises:
        InputError: it has none, or one with larger requests than its server takes.
    """
    goal = pipeline.serving.slo
    if goal is None:
        raise InputError(
            "there is no latency goal to profile for",
            seen="no serving.slo in the pipeline file",
            valid=f"the largest p99 and the requests per second, such as {GOAL}",
            hint="add it to the file, or give it with --set serving.slo.p99_ms=20 "
            "--set serving.slo.rate=200",
        )
    if max(goal.rows) > pipeline.serving.max_batch_size:
        raise InputError(
            "the goal has larger requests than the server takes",
            seen=f"serving.slo.rows: {max(goal.rows)} rows",
            valid=f"at most serving.max_batch_size, {pipeline.serving.max_batch_size}",
            hint="set serving.max_batch_size to the largest request, or smaller rows",
        )
    return goal


def _earlier(registry: Registry, version: ModelVersion) -> ServingProfile | None:
    """Return the version's profile as it is now; None if there is none that can be used."""
    try:
        return load_profile(registry, registry.version(version.model, version.version))
    except InputError:
        return None


def profile_unproved(installation: Installation) -> Iterator[Profiled]:
    """Profile on this machine each champion whose release needs a proof of its goal that it lacks.

    A proof from a machine of another kind, or with another engine, is no proof here.

    Raises:
        As `profile_version`.
    """
    known = MlflowRegistry(installation)
    for version in known.registry.champions().values():
        if reason := known.lacked_proof(version):
            log.info("profiling %s on this machine: %s", version.title, reason)
            pipeline = pipeline_of(known.package(version))
            yield profile_version(pipeline, installation, version.version)


def _workload(
    artifact: Artifact,
    inputs: "Mapping[str, Any]",
    goal: SloSpec,
    kept: KeptTimes,
    cores: int,
    is_late: Callable[[], bool],
) -> Workload:
    """Return what is measured of a version: streams of tokens, or batches."""
    if goal.is_streamed:
        return StreamWorkload(artifact, inputs["text_input"], goal, kept, log.info)
    return BatchWorkload(artifact, inputs, goal, cores, kept, log.info, is_late)


def _times_text(workload: Workload, found: Found) -> str | None:
    """Return the times of the chosen configuration's batches; None for a model that streams."""
    chosen = found.chosen.configuration
    if not isinstance(workload, BatchWorkload) or not isinstance(chosen, BatchConfiguration):
        return None
    return json.dumps(workload.times[chosen.setup].to_json(), separators=(",", ":"))


def find_version(registry: Registry, model: str, number: int | None) -> ModelVersion:
    """Return the version to profile: the given one, the challenger, or the newest that passed.

    Raises:
        InputError: there is none.
        TransientError: MLflow does not answer.
    """
    if number is not None:
        return registry.version(model, number)
    challenger = registry.by_alias(model, CHALLENGER)
    if challenger is not None:
        return challenger
    passed = (each for each in registry.newest_versions(model) if not has_failed(each.tags))
    found = next(passed, None)
    if found is None:
        raise InputError(
            f"there is no version of {model} to profile",
            valid="a version that passed its gates",
            hint="train one: millrace run FILE; or name another one with --version",
        )
    return found


def _require_backend(artifact: Artifact, version: ModelVersion) -> None:
    """Raise InputError if the Triton that Millrace starts cannot serve the version."""
    backend = triton_kind(artifact).special_backend(artifact)
    if backend is not None:
        raise InputError(
            f"{version.title} cannot be profiled here",
            seen=f"it needs Triton's backend {backend}, which is in NVIDIA's container",
            valid="a version that the Triton of `millrace up` serves",
            hint="choose another variant in export.variants",
        )


def make_profile(
    version: ModelVersion, goal: SloSpec, found: Found, machine: Machine, engine: str
) -> ServingProfile:
    """Return the profile of a version to store."""
    capacity = found.chosen.measured or 0.0
    return ServingProfile(
        model=version.model,
        version=version.version,
        digest=version.digest,
        variant=version.tags.get(CANDIDATE_TAG, ""),
        goal=goal,
        configuration=Configuration(settings=found.chosen.configuration.settings),
        rate=found.rate,
        capacity=capacity,
        confidence=found.confidence,
        proofs=found.proofs,
        figures={**found.figures, **scaler_figures(capacity, max(bounds_of(goal).values()))},
        client=found.client,
        machine=str(machine),
        machine_kind=machine.kind,
        cores=machine.cores,
        engine=engine,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def points_of(found: Found) -> list[ProfilePoint]:
    """Return the configurations as points of the picture."""
    return [
        ProfilePoint(
            str(each.configuration),
            each.most,
            each.at_goal,
            is_measured=each.measured is not None,
            is_chosen=each.configuration == found.chosen.configuration,
            is_current=each.configuration == found.current.configuration,
        )
        for each in found.considered
        if each.most > 0
    ]


def _log(run: TrackedRun, profile: ServingProfile, found: Found) -> None:
    metrics = {
        "capacity": profile.capacity,
        "capacity_of_pipeline_file": found.current.measured,
        **profile.figures,
    }
    for proof in profile.proofs:
        metrics |= {proof.bound: proof.p99_ms, proof.bound.replace("p99", "p50"): proof.p50_ms}
        metrics |= {f"{proof.bound}_over": proof.over, f"{proof.bound}_allowed": proof.allowed}
    run.log_metrics({name: value for name, value in metrics.items() if value is not None})
    with drawing_process() as drawing:
        drawing.begin({})
        bounds = bounds_of(profile.goal)
        figure = partial(profile_figure, points_of(found), profile.goal.rate, bounds)
        drawing.add({"profile.png": figure})
        run.log_report({FILE: profile.to_json()}, drawing.pictures())
    run.describe(f"{profile.summary()}. Served with: {profile.configuration}.")


def _flat(goal: SloSpec) -> "Mapping[str, object]":
    others = {"rows"} if goal.is_streamed else {"prompt_tokens", "answer_tokens"}
    values = goal.model_dump(exclude=others).items()
    return {f"slo.{key}": value for key, value in values if value is not None}


def _warn_if_busy() -> None:
    load = measure_other_load()
    if load > BUSY:
        log.warning(
            "other programs use %.0f%% of the cores, so what is measured is slower than it could "
            "be",
            100 * load,
        )


def describe(considered: Considered) -> tuple[str, ...]:
    """Return a configuration, its capacity and its p99 at the goal's rate, for a table."""
    return (
        *considered.configuration.cells.values(),
        f"{'~' if considered.measured is None else ''}{short(considered.most)}",
        *map(short, considered.at_goal.values()),
    )


def head_of(found: Found) -> tuple[str, ...]:
    """Return the titles of the columns of `describe`."""
    first = found.considered[0]
    bounds = (key.removesuffix("_ms").replace("_", " ") + " ms" for key in first.at_goal)
    return (*first.configuration.cells, "most requests/s", *bounds)
