"""Keeps the deployments in Prefect as the pipeline files and MILLRACE_PIPELINES declare them.

`deployment_specs` plans the changes; this module reads Prefect's state and applies the changes.
"""

import math
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from millrace.flows.console import WarnOnce, first_line, log
from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.catch_up import (
    HOME_TAG,
    TAG,
    assign_to_home,
    home_id,
    is_of_another_home,
)
from millrace.flows.deployments.deployment_specs import (
    Change,
    DeploymentSpec,
    ExistingDeployment,
    ExistingSchedule,
    RegisterDeployment,
    RemoveSchedules,
    build_specs,
    plan_changes,
)
from millrace.flows.deployments.own_schedules import read_own
from millrace.flows.deployments.schedule_state import PutBack, Schedule, Schedules
from millrace.flows.deployments.scheduled_files import (
    ScheduledPipeline,
    ScheduleFault,
    read_pipeline_files,
    select_pipelines,
)
from millrace.flows.settings import Settings

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

CHECK_SECONDS = 4.0
"""Pause between two readings of the pipeline files, and between two tries of a failed check."""
READ_SECONDS = 20.0
"""Prefect is read this often while the files stay the same: its answer costs 0.1 s of a core."""
MAX_CHECK_SECONDS = 60.0
PAGE = 200
MAX_PUT_BACK = 20
FOREIGN_FIELDS = ("pull_steps", "job_variables", "work_pool_name", "storage_document_id")
"""Fields that Millrace never sets; they make a deployment run other code, or run elsewhere."""

Register = Callable[[DeploymentSpec, bool], Awaitable[UUID]]
"""Registers a deployment, paused if the flag is set, and returns its id."""


class ScheduleLoop:
    """Checks the deployments in Prefect repeatedly, and restores those that differ from the specs.

    Args:
        settings: the settings of this home.
        client: the client of the Prefect server.
        register: a function that registers a deployment.
        flow_name: a function that returns the name of an entrypoint's flow.
    """

    def __init__(
        self,
        settings: Settings,
        client: "PrefectClient",
        register: Register,
        flow_name: Callable[[str], str],
    ) -> None:
        self._settings, self._client = settings, client
        self._register, self._flow_name = register, flow_name
        before = schedule_state.read(settings.run) or Schedules(os.getpid())
        self._last_valid: dict[str, ScheduledPipeline] = before.last_valid()
        self._put_back: tuple[PutBack, ...] = before.put_back
        self._paused = {each.deployment for each in before.schedules if each.paused}
        self._existing: dict[str, ExistingDeployment] = {}
        self._applied: dict[str, DeploymentSpec] = {}
        self._flows: dict[str, UUID] = {}
        self._warning = WarnOnce("cannot check the schedules in Prefect: %s")
        self._pause = CHECK_SECONDS
        self._read_at = -math.inf
        self.state = Schedules(os.getpid())

    def read_desired(
        self,
    ) -> tuple[tuple[DeploymentSpec, ...], tuple[str, ...], tuple[ScheduleFault, ...]]:
        """Return the desired deployments, the patterns of their files, and the files' faults."""
        settings = self._settings
        own = read_own(settings.home)
        patterns = schedule_state.read_patterns(settings.run, settings.pipeline_patterns())
        files = own.scheduled(read_pipeline_files(own.patterns(patterns)))
        self._last_valid |= {each.file: each.pipeline for each in files if each.pipeline}
        pipelines, faults = select_pipelines(files, self._last_valid)
        present = {each.file for each in files if each.pipeline or each.reason}
        self._last_valid = {file: p for file, p in self._last_valid.items() if file in present}
        specs = assign_to_home(build_specs(pipelines, settings.deployments), settings)
        return specs, patterns, faults

    async def check(self) -> float:
        """Check once, and restore the deployments that differ from their specs.

        If Prefect does not answer, that is reported once and the last known state stays.

        Returns:
            Seconds until the next check. The pause doubles, up to `MAX_CHECK_SECONDS`, while
            checks keep finding differences.
        """
        import httpx
        from prefect.exceptions import PrefectException

        specs, patterns, faults = self.read_desired()
        if self._is_up_to_date(specs, patterns, faults):
            return CHECK_SECONDS
        try:
            changes = plan_changes(specs, *await self._read_existing(specs), self._paused)
            if changes:
                self._publish(replace(self.state, settled=False))
                await self._apply(changes)
                await self._read_existing(specs)
        except (PrefectException, httpx.HTTPError, OSError, RuntimeError) as error:
            self._warning.report(first_line(error))
            return CHECK_SECONDS
        self._warning.report("")
        self._applied = {spec.name: spec for spec in specs}
        existing = self._existing
        self._paused = {name for name, each in existing.items() if each.is_paused}
        self._publish(
            Schedules(
                pid=os.getpid(),
                patterns=patterns,
                settled=not plan_changes(specs, existing),
                schedules=tuple(map(self._to_schedule, specs)),
                faults=faults,
                put_back=self._put_back,
                kept=schedule_state.dump_pipelines(self._last_valid),
            )
        )
        self._pause = min(2 * self._pause, MAX_CHECK_SECONDS) if changes else CHECK_SECONDS
        self._read_at = time.monotonic()
        return self._pause

    def _is_up_to_date(
        self,
        specs: tuple[DeploymentSpec, ...],
        patterns: tuple[str, ...],
        faults: tuple[ScheduleFault, ...],
    ) -> bool:
        """Return whether Prefect was read a moment ago and the files are as they were then."""
        applied = {spec.name: spec for spec in specs} == self._applied
        is_same = applied and (patterns, faults) == (self.state.patterns, self.state.faults)
        is_recent = time.monotonic() - self._read_at < READ_SECONDS
        return is_same and is_recent and self.state.settled

    async def _read_existing(
        self, specs: Sequence[DeploymentSpec]
    ) -> tuple[dict[str, ExistingDeployment], tuple[ExistingDeployment, ...]]:
        """Return Prefect's deployment of each spec, and the other deployments of this home."""
        by_name = {spec.name: spec for spec in specs}
        existing: dict[str, ExistingDeployment] = {}
        others: list[ExistingDeployment] = []
        for found in await self._query(tuple(by_name)):
            spec = by_name.get(found.name)
            if spec is not None and found.flow_id == await self._flow_id(spec):
                existing[found.name] = to_existing(found)
            elif spec is None and self._is_ours(found):
                others.append(to_existing(found))
        self._existing = existing
        return existing, tuple(others)

    async def _query(self, names: tuple[str, ...]) -> "list[DeploymentResponse]":
        """Return the deployments in Prefect that have one of these names or Millrace's tag."""
        from prefect.client.schemas import filters

        wanted = filters.DeploymentFilter(
            operator=filters.Operator.or_,
            name=filters.DeploymentFilterName(any_=list(names)),
            tags=filters.DeploymentFilterTags(all_=[TAG]),
        )
        found: list[DeploymentResponse] = []
        while True:
            page = await self._client.read_deployments(
                deployment_filter=wanted, limit=PAGE, offset=len(found)
            )
            found += page
            if len(page) < PAGE:
                return found

    def _is_ours(self, found: "DeploymentResponse") -> bool:
        """Return whether a deployment belongs to this home.

        On the Prefect server of `up`, a deployment without the tag of a home belongs to this home
        too.
        """
        home = home_id(self._settings)
        if found.work_pool_name is not None or TAG not in found.tags:
            return False
        if self._settings.prefect_api_url is not None:
            return f"{HOME_TAG}{home}" in found.tags
        return not is_of_another_home(found.tags, home)

    async def _flow_id(self, spec: DeploymentSpec) -> UUID:
        name = self._flow_name(spec.entrypoint)
        if name not in self._flows:
            self._flows[name] = await self._client.create_flow_from_name(name)
        return self._flows[name]

    async def _apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, RemoveSchedules):
                found = change.deployment
                for schedule in found.schedules:
                    await self._client.delete_deployment_schedule(found.id, schedule.id)
                log.info("the deployment %s is no longer scheduled", found.name)
                continue
            if change.replaces is not None:
                await self._client.delete_deployment(change.replaces)
            await self._register(change.spec, change.is_paused)
            self._report(change)
        self._flows.clear()  # a flow may have been deleted with its deployments

    def _report(self, change: RegisterDeployment) -> None:
        """Log that a deployment was registered, or that it was restored.

        It was restored if its spec is the same as at the last check. Then the deployment was
        removed or changed in Prefect.
        """
        name = change.spec.name
        if self._applied.get(name) != change.spec:
            when = change.spec.cron or "only on request"
            log.info("the deployment %s is registered, to run: %s", name, when)
            return
        log.warning("the deployment %s was restored: %s", name, change.reason)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._put_back = (*self._put_back, PutBack(name, change.reason, now))[-MAX_PUT_BACK:]

    def _to_schedule(self, spec: DeploymentSpec) -> Schedule:
        file = str(spec.parameters.get("pipeline_file", ""))
        return Schedule(spec.name, file, spec.cron, spec.timezone, spec.name in self._paused)

    def _publish(self, state: Schedules) -> None:
        if state != self.state:
            schedule_state.write(self._settings.run, state)
            self.state = state


def to_existing(found: "DeploymentResponse") -> ExistingDeployment:
    """Return what Millrace compares of a deployment."""
    limit, options = found.global_concurrency_limit, found.concurrency_options
    return ExistingDeployment(
        id=found.id,
        name=found.name,
        entrypoint=found.entrypoint,
        description=found.description or "",
        tags=tuple(sorted(found.tags)),
        parameters=found.parameters,
        limit=limit.limit if limit else None,
        collision_strategy=str(options.collision_strategy.value) if options else "",
        has_pause=found.paused,
        schedules=tuple(
            ExistingSchedule(
                each.id,
                getattr(each.schedule, "cron", None),
                str(getattr(each.schedule, "timezone", None) or "UTC"),
                bool(each.active),
            )
            for each in found.schedules
        ),
        foreign=(
            *(name for name in FOREIGN_FIELDS if getattr(found, name, None)),
            *(() if found.path in (None, ".", str(Path.cwd())) else ("path",)),
        ),
    )
