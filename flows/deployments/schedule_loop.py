"""Keeping the deployments in Prefect as the pipeline files and the setting say, every few seconds.

`millrace.flows.deployments.schedule_files` and `millrace.flows.deployments.schedule_plan` decide;
this looks and carries out.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from millrace.flows.console import first_line
from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.catch_up import HOME, OURS, belongs_elsewhere, home_id, owned
from millrace.flows.deployments.deployment_specs import DeploymentSpec, Scheduled, specs_of
from millrace.flows.deployments.schedule_files import Fault, look, to_schedule
from millrace.flows.deployments.schedule_plan import Held, HeldSchedule, Make, Unschedule, decide
from millrace.flows.deployments.schedule_state import MOST_KEPT, PutBack, Schedule, Schedules
from millrace.flows.settings import Settings
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

LOOK_SECONDS = 4.0
LONGEST_SECONDS = 60.0
PAGE = 200
NEVER_OURS = ("pull_steps", "job_variables", "work_pool_name", "storage_document_id")
"""What a deployment of ours does not have: it would run other code, elsewhere or otherwise."""

Register = Callable[[DeploymentSpec, bool], Awaitable[UUID]]
"""Makes a deployment, its schedule paused or not, and returns its id."""


class ScheduleLoop:
    """Looks, decides and carries out.

    Args:
        settings: of this home.
        client: of the Prefect server.
        register: makes a deployment.
        flow_name: returns the name of the flow of an entrypoint.
    """

    def __init__(
        self,
        settings: Settings,
        client: "PrefectClient",
        register: Register,
        flow_name: Callable[[DeploymentSpec], str],
    ) -> None:
        self._settings, self._client = settings, client
        self._register, self._flow_name = register, flow_name
        before = schedule_state.read(settings.run)
        self._kept: dict[str, Scheduled] = before.pipelines() if before else {}
        self._put_back: tuple[PutBack, ...] = before.put_back if before else ()
        schedules = before.schedules if before else ()
        self._paused = {each.deployment for each in schedules if each.paused}
        self._seen: dict[str, Held] = {}
        self._applied: dict[str, DeploymentSpec] = {}
        self._flows: dict[str, UUID] = {}
        self._told = ""
        self._pause = LOOK_SECONDS
        self.state = Schedules(os.getpid())

    def wanted(self) -> tuple[tuple[DeploymentSpec, ...], tuple[str, ...], tuple[Fault, ...]]:
        """Return what should be in Prefect, the patterns that say so, and faults of the files."""
        settings = self._settings
        patterns = schedule_state.asked(settings.run, settings.pipeline_patterns())
        seen = look(patterns)
        self._kept |= {each.file: each.pipeline for each in seen if each.pipeline}
        pipelines, faults = to_schedule(seen, self._kept)
        named = {each.file for each in seen if each.pipeline or each.reason}
        self._kept = {file: kept for file, kept in self._kept.items() if file in named}
        shared = settings.prefect_api_url is not None
        specs = owned(specs_of(pipelines, settings.deployments), home_id(settings), shared=shared)
        return specs, patterns, faults

    async def look(self) -> float:
        """Look once, and put right what is not as it should be.

        A Prefect that is away is told once; what holds is then what was seen last.

        Returns:
            Seconds until the next look: what does not stay right is looked at less and less often.
        """
        import httpx
        from prefect.exceptions import PrefectException

        specs, patterns, faults = self.wanted()
        try:
            changes = decide(specs, *await self._held(specs), self._paused)
            if changes:
                self._publish(replace(self.state, settled=False))
                await self._carry_out(changes)
                await self._held(specs)
        except (PrefectException, httpx.HTTPError, OSError, RuntimeError) as error:
            self._tell(first_line(error))
            return LOOK_SECONDS
        self._tell("")
        self._applied = {spec.name: spec for spec in specs}
        held = self._seen
        self._paused = {name for name, each in held.items() if each.is_paused}
        self._publish(
            Schedules(
                pid=os.getpid(),
                patterns=patterns,
                settled=not decide(specs, held),
                schedules=tuple(_schedule(spec, held.get(spec.name)) for spec in specs),
                faults=faults,
                put_back=self._put_back,
                kept=schedule_state.kept_of(self._kept),
            )
        )
        self._pause = min(2 * self._pause, LONGEST_SECONDS) if changes else LOOK_SECONDS
        return self._pause

    async def _held(
        self, specs: Sequence[DeploymentSpec]
    ) -> tuple[dict[str, Held], tuple[Held, ...]]:
        """Return what Prefect has of each spec, and the other deployments of this home."""
        names = {spec.name: spec for spec in specs}
        held: dict[str, Held] = {}
        others: list[Held] = []
        for found in await self._read(tuple(names)):
            spec = names.get(found.name)
            if spec is not None and found.flow_id == await self._flow_id(spec):
                held[found.name] = _held(found)
            elif spec is None and self._is_ours(found):
                others.append(_held(found))
        self._seen = held
        return held, tuple(others)

    async def _read(self, names: tuple[str, ...]) -> "list[DeploymentResponse]":
        """Return the deployments of these names, and those that carry our tag."""
        from prefect.client.schemas import filters

        wanted = filters.DeploymentFilter(
            operator=filters.Operator.or_,
            name=filters.DeploymentFilterName(any_=list(names)),
            tags=filters.DeploymentFilterTags(all_=[OURS]),
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
        """Whether it is this home's; on the embedded server, one that names no home is too."""
        home = home_id(self._settings)
        if found.work_pool_name is not None or OURS not in found.tags:
            return False
        shared = self._settings.prefect_api_url is not None
        return f"{HOME}{home}" in found.tags if shared else not belongs_elsewhere(found.tags, home)

    async def _flow_id(self, spec: DeploymentSpec) -> UUID:
        name = self._flow_name(spec)
        if name not in self._flows:
            self._flows[name] = await self._client.create_flow_from_name(name)
        return self._flows[name]

    async def _carry_out(self, changes: Sequence[Make | Unschedule]) -> None:
        for change in changes:
            if isinstance(change, Unschedule):
                for schedule in change.schedules:
                    await self._client.delete_deployment_schedule(change.deployment, schedule)
                log.info("%s is no longer scheduled", change.name)
                continue
            if change.anew is not None:
                await self._client.delete_deployment(change.anew)
            await self._register(change.spec, change.paused)
            self._note(change)
        self._flows.clear()  # a flow may have been deleted with its deployments

    def _note(self, change: Make) -> None:
        """Tell of a deployment that was made; one that nobody of ours changed was put back."""
        name = change.spec.name
        if self._applied.get(name) != change.spec:
            log.info("%s is registered: %s", name, change.spec.cron or "only when asked")
            return
        log.warning("%s was put back: %s", name, change.why)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._put_back = (*self._put_back, PutBack(name, change.why, now))[-MOST_KEPT:]

    def _publish(self, state: Schedules) -> None:
        if state != self.state:
            schedule_state.write(self._settings.run, state)
            self.state = state

    def _tell(self, reason: str) -> None:
        """Say once why it cannot look."""
        if reason and reason != self._told:
            log.warning("cannot look at the schedules in Prefect: %s", reason)
        self._told = reason


def _schedule(spec: DeploymentSpec, held: Held | None) -> Schedule:
    file = str(spec.parameters.get("pipeline_file", ""))
    paused = held is not None and held.is_paused
    return Schedule(spec.name, file, spec.cron, spec.timezone, paused)


def _held(found: "DeploymentResponse") -> Held:
    limit, options = found.global_concurrency_limit, found.concurrency_options
    return Held(
        id=found.id,
        name=found.name,
        entrypoint=found.entrypoint,
        description=found.description or "",
        tags=tuple(sorted(found.tags)),
        parameters=found.parameters,
        limit=limit.limit if limit else None,
        collision_strategy=str(options.collision_strategy.value) if options else "",
        paused=found.paused,
        schedules=tuple(
            HeldSchedule(
                each.id,
                getattr(each.schedule, "cron", None),
                str(getattr(each.schedule, "timezone", None) or "UTC"),
                bool(each.active),
            )
            for each in found.schedules
        ),
        foreign=(
            *(name for name in NEVER_OURS if getattr(found, name, None)),
            *(() if found.path in (None, ".", str(Path.cwd())) else ("path",)),
        ),
    )
