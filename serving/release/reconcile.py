"""Make every Triton server serve the champions: plan, and release the models concurrently.

Only one release of a model runs at a time on this machine. Models do not wait for each other, so a
candidate that hangs in its trial does not keep another model from going live.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from pathlib import Path
from threading import Event, Thread

from millrace.models.common.errors import MillraceError, unexpected_error
from millrace.models.common.installation import Endpoint
from millrace.models.common.printable import one_line
from millrace.serving.release.apply import ModelRelease, Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.model_registry import ModelRegistry
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome, build_outcome
from millrace.serving.release.plan import plan
from millrace.serving.triton.repository import Repository

MAX_THREADS = 4
STOP_SECONDS = 5.0
"""How long the threads of an interrupted process may go on; then they end with the process."""

Outcomes = tuple[Outcome, ...]


def reconcile(
    registry: ModelRegistry,
    ledger: Ledger,
    repository: Repository,
    endpoints: Sequence[Endpoint] | Callable[[], Sequence[Endpoint]],
    request: Request,
    models: Sequence[str] | None = None,
    traces: Path | None = None,
    note_missed: Callable[[Endpoint], None] = lambda endpoint: None,
) -> Outcomes:
    """Bring every server to the desired versions, as far as possible.

    If a version is refused, the version that served before still does. An error of one model is in
    that model's outcome, and the other models are released. A second call changes nothing.

    Args:
        registry: the model registry.
        ledger: the release table.
        repository: the model repository that the servers read.
        endpoints: every server, or what returns those that run now.
        request: who requested the release, and which refused versions to try again.
        models: the models to release; None for all.
        traces: folder for the traces of unexpected errors.
        note_missed: is called with each server that did not answer a release that changed others.

    Raises:
        WorkError: the registry does not answer, or fails; every server still serves what was live.
    """
    retry_before = request.retry_refused_before
    find = endpoints if callable(endpoints) else lambda: endpoints
    observer = Observer(registry, ledger, repository, find, retry_before, traces)

    def release(model: str, stop: Event) -> Outcomes:
        with repository.exclusive(model):
            try:
                model_release = ModelRelease(model, observer, request, stop)
                model_release.carry_out()
                for endpoint in model_release.missed():
                    note_missed(endpoint)
                return model_release.outcomes()
            except Exception as error:  # whatever it is, the other models go on
                what = f"the release of {one_line(model)} failed unexpectedly"
                return fail(model, unexpected_error(what, error, traces))

    def fail(model: str, error: MillraceError) -> Outcomes:
        return tuple(Outcome(e, model, None, None, False, 0.0, error) for e in find())

    outcomes: dict[str, Outcomes] = {}
    registry_error: MillraceError | None = None
    if models is None:
        cluster = observer.observe()
        models = list(dict.fromkeys(action.model for action in plan(cluster)))
        for model in cluster.desired_versions.keys() - set(models):
            outcomes[model] = tuple(build_outcome(cluster, model, r) for r in cluster.replicas)
        outcomes |= {model: fail(model, fault) for model, fault in cluster.faults.items()}
        registry_error = cluster.registry_error
    futures = run_in_threads(release, models)
    outcomes |= {model: future.result() for model, future in futures.items()}
    if registry_error is not None:
        raise registry_error
    return tuple(outcome for model in sorted(outcomes) for outcome in outcomes[model])


def run_in_threads(
    release: Callable[[str, Event], Outcomes], models: Sequence[str]
) -> dict[str, "Future[Outcomes]"]:
    """Release models in a few threads, and return when all have ended.

    A single model is released in this thread. If this thread is interrupted, no further release
    begins, and the event that `release` gets is set. The threads are daemons, so that a release
    that hangs does not keep an interrupted process alive. The threads of a `ThreadPoolExecutor`
    would keep it alive, because Python joins them when it exits.

    Args:
        release: releases a model, and begins no further action once the event is set. It is called
            from several threads, in the caller's context.
        models: the models.
    """
    stop = Event()
    futures: dict[str, Future[Outcomes]] = {model: Future() for model in models}
    waiting = deque(futures.items())
    if len(futures) <= 1:
        _release_waiting(waiting, release, stop)
        return futures
    work = (_release_waiting, waiting, release, stop)
    threads = [
        Thread(target=copy_context().run, args=work, daemon=True)
        for _ in range(min(MAX_THREADS, len(futures)))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        stop.set()
        for thread in threads:
            thread.join(STOP_SECONDS / len(threads))
        raise
    return futures


def _release_waiting(
    waiting: "deque[tuple[str, Future[Outcomes]]]",
    release: Callable[[str, Event], Outcomes],
    stop: Event,
) -> None:
    """Release the waiting models one after the other, until none is left or the event is set."""
    while not stop.is_set():
        try:
            model, future = waiting.popleft()
        except IndexError:
            return
        try:
            future.set_result(release(model, stop))
        except BaseException as error:
            future.set_exception(error)
