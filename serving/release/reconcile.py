"""Make every Triton server serve the champions: what is due is done, model beside model.

One release of a model is at work at a time, on this machine, and no model waits for another: a
candidate that hangs in its trial keeps nobody else from going live.
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Event

from millrace.models.common.errors import MillraceError, unexpected_error
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.apply import ModelRelease, Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.model_registry import ModelRegistry
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome, outcome_of
from millrace.serving.release.plan import plan
from millrace.serving.triton.every_replica import abreast
from millrace.serving.triton.repository import Repository


def reconcile(
    desk: ModelRegistry,
    ledger: Ledger,
    repository: Repository,
    endpoints: Sequence[Endpoint],
    request: Request,
    models: Sequence[str] | None = None,
    traces: Path | None = None,
) -> tuple[Outcome, ...]:
    """Bring every server to the desired versions, as far as that goes.

    A version that is refused leaves what served before serving, and no model stops another: its
    outcome carries the error. Doing it again changes nothing.

    Args:
        desk: the registry's side.
        ledger: the release table.
        repository: the model repository that the servers read.
        endpoints: every server.
        request: who asks, and how.
        models: the models to release; None for all.
        traces: folder for the traces of faults that nobody expected.

    Raises:
        WorkError: the registry does not answer, or fails; every server has what was live.
    """
    observer = Observer(desk, ledger, repository, tuple(endpoints), request.again_from, traces)

    def release(model: str, stop: Event) -> tuple[Outcome, ...]:
        with repository.exclusive(model):
            try:
                made = ModelRelease(model, observer, request, stop)
                made.carry_out()
                return made.outcomes()
            except Exception as error:  # whatever it is, the other models go on
                return failed(model, unexpected_error(_failed(model), error, traces))

    def failed(model: str, error: MillraceError) -> tuple[Outcome, ...]:
        return tuple(Outcome(e, model, None, None, False, 0.0, error) for e in endpoints)

    outcomes: dict[str, tuple[Outcome, ...]] = {}
    away: MillraceError | None = None
    if models is None:
        world = observer.world()
        models = list(dict.fromkeys(action.model for action in plan(world)))
        for model in world.wishes.keys() - set(models):
            outcomes[model] = tuple(outcome_of(world, model, each) for each in world.replicas)
        for model, fault in world.faults.items():
            outcomes[model] = failed(model, fault)
        away = world.registry_away
    outcomes |= abreast(release, models)
    if away is not None:
        raise away
    return tuple(outcome for model in sorted(outcomes) for outcome in outcomes[model])


def _failed(model: str) -> str:
    return f"the release of {one_line(model)} ended in a fault"
