"""Flow: make Triton serve the versions that the registry's aliases name."""

from prefect import flow

from millrace.flows import settings, tool_variables
from millrace.flows.heartbeats import leave_out_heartbeats
from millrace.serving.release.live import live_versions, served_models
from millrace.serving.release.outcome import Outcome, raise_first_error
from millrace.tasks.alerts import alert_failure
from millrace.tasks.release import reconcile_triton
from millrace.tasks.reports.run_report import publish_release, run_link
from millrace.tasks.run_names import name_run, release_name

PREFECT = "a run of the deployment"


@flow(
    name="release_model",
    retries=0,
    persist_result=False,
    on_running=[leave_out_heartbeats],
    on_failure=[alert_failure],
    on_crashed=[alert_failure],
)
def release_model(
    asked_by: str = PREFECT, again: bool = False, models: list[str] | None = None
) -> tuple[Outcome, ...]:
    """Reconcile every Triton server with the registry.

    A refusal that an earlier release has reported is in the outcome, but does not fail this run.

    Args:
        asked_by: who or what requested the release; stored with every event in the release table.
        again: whether to retry versions that were refused before.
        models: the models to release; None for all.

    Raises:
        MillraceError: a model could not be released; the other models were.
    """
    installation = tool_variables.apply(settings.load()).installation()
    outcomes = reconcile_triton(installation, asked_by, run_link(), again, models)
    versions = {each.model: each.version for each in outcomes if each.changed or each.error}
    if versions:
        name_run(release_name(versions), *versions)
    if any(outcome.changed or (outcome.error and not outcome.known) for outcome in outcomes):
        publish_release(outcomes, served_models(installation, live_versions(installation)))
    raise_first_error([outcome for outcome in outcomes if not outcome.known])
    return outcomes
