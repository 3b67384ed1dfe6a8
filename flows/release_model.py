"""Flow: what Triton serves becomes what the registry's aliases say."""

from prefect import flow

from flows import settings
from serving.reconcile import Outcome
from tasks.release import certify_released, reconcile_triton
from tasks.report import publish_release


@flow(name="release_model", retries=0, persist_result=False)
def release_model() -> tuple[Outcome, ...]:
    """Reconcile every Triton server, and certify what changed with its golden batch.

    Raises:
        MillraceError: a model could not be released; the others were.
    """
    places = settings.apply(settings.load()).places()
    outcomes = reconcile_triton(places)
    if any(outcome.changed or outcome.error for outcome in outcomes):
        outcomes = certify_released(places, outcomes)
        publish_release(outcomes)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes
