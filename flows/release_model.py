"""Flow: what Triton serves becomes what the registry's aliases say."""

from prefect import flow

from millrace.flows import environment, settings
from millrace.serving.release.live import live_versions, served_models
from millrace.serving.release.outcome import Outcome, raise_first_error
from millrace.tasks.release import reconcile_triton
from millrace.tasks.reports.run_report import publish_release, run_link
from millrace.tasks.run_names import name_run, release_name

PREFECT = "a run of the deployment"


@flow(name="release_model", retries=0, persist_result=False)
def release_model(
    asked_by: str = PREFECT, again: bool = False, models: list[str] | None = None
) -> tuple[Outcome, ...]:
    """Reconcile every Triton server with the registry, whoever asks for it.

    Args:
        asked_by: who or what asked for it; kept with every event in the release table.
        again: try versions once more that were refused before.
        models: the models to release; None for all.

    A refusal that an earlier release told is in its outcome and fails this one no more.

    Raises:
        MillraceError: a model could not be released; the others were.
    """
    places = environment.apply(settings.load()).places()
    outcomes = reconcile_triton(places, asked_by, run_link(), again, models)
    told = {each.model: each.version for each in outcomes if each.changed or each.error}
    if told:
        name_run(release_name(told), *told)
    if any(outcome.changed or (outcome.error and not outcome.known) for outcome in outcomes):
        publish_release(outcomes, served_models(places, live_versions(places)))
    raise_first_error([outcome for outcome in outcomes if not outcome.known])
    return outcomes
