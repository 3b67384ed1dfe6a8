import threading
from collections.abc import Callable, Iterator

import pytest

from flows.release_worker import ReleaseWorker
from models.errors import InputError, TransientError

SOON = 10.0


class Releases:
    """Releases that wait to be let through, and see the alias as it is then."""

    def __init__(self) -> None:
        self.alias = 0
        self.seen: list[tuple[str, int]] = []
        self.errors: list[BaseException] = []
        self.began, self.let_through = threading.Semaphore(0), threading.Semaphore(0)
        self.at_work = 0

    def __call__(self, asked_by: str) -> None:
        self.at_work += 1
        self.began.release()
        assert self.let_through.acquire(timeout=SOON)
        assert self.at_work == 1, "two releases at a time"
        self.at_work -= 1
        self.seen.append((asked_by, self.alias))
        if self.errors:
            raise self.errors.pop(0)

    def next(self) -> None:
        """Let one release through."""
        assert self.began.acquire(timeout=SOON)
        self.let_through.release()


Start = Callable[..., ReleaseWorker]


@pytest.fixture
def releases() -> Releases:
    return Releases()


@pytest.fixture
def start(releases: Releases) -> Iterator[Start]:
    workers: list[ReleaseWorker] = []

    def started(*retry_seconds: float) -> ReleaseWorker:
        workers.append(ReleaseWorker(releases, retry_seconds))
        workers[-1].start()
        return workers[-1]

    yield started
    for worker in workers:
        for _ in range(20):
            releases.let_through.release()
        worker.end(SOON)


def test_twelve_moves_in_a_row_end_in_the_last_one(releases: Releases, start: Start) -> None:
    worker = start()
    for version in range(1, 13):
        releases.alias = version
        worker.want("digits", f"webhook: champion of digits → version {version}")
        if version == 1:
            assert releases.began.acquire(timeout=SOON)
    releases.let_through.release()
    releases.next()
    worker.end(SOON)
    assert [alias for _, alias in releases.seen] == [12, 12]
    assert releases.seen[-1][0] == "webhook: champion of digits → version 12"


def test_one_release_serves_every_model_that_waits(releases: Releases, start: Start) -> None:
    worker = start()
    worker.want("", "webhook: started")
    assert releases.began.acquire(timeout=SOON)
    worker.want("a", "webhook: champion of a → version 1")
    worker.want("b", "webhook: champion of b removed")
    releases.let_through.release()
    releases.next()
    worker.end(SOON)
    asked = [asked_by for asked_by, _ in releases.seen]
    assert asked == [
        "webhook: started",
        "webhook: champion of a → version 1, webhook: champion of b removed",
    ]


def test_what_may_pass_is_tried_again_for_the_same_wish(releases: Releases, start: Start) -> None:
    releases.errors = [TransientError("no Triton"), ConnectionError("MLflow restarts")]
    worker = start(0.01, 0.01)
    worker.want("a", "webhook: x")
    for _ in range(3):
        releases.next()
    worker.end(SOON)
    assert [asked_by for asked_by, _ in releases.seen] == ["webhook: x"] * 3


def test_a_wish_that_goes_on_to_fail_is_left_to_the_schedule(
    releases: Releases, start: Start
) -> None:
    releases.errors = [TransientError("no Triton")] * 2
    worker = start(0.01)
    worker.want("a", "webhook: x")
    releases.next()
    releases.next()
    worker.want("b", "webhook: y")
    releases.next()
    worker.end(SOON)
    assert releases.seen[-1][0] == "webhook: y"


@pytest.mark.parametrize("error", [InputError("refused"), SystemExit("a signal of Prefect's")])
def test_the_worker_outlives_every_failure(
    releases: Releases, start: Start, error: BaseException
) -> None:
    releases.errors = [error]
    worker = start()
    worker.want("a", "webhook: x")
    releases.next()
    worker.want("b", "webhook: y")
    releases.next()
    worker.end(SOON)
    assert releases.seen[-1][0] == "webhook: y"


def test_an_end_waits_for_the_release_under_way_and_begins_no_other(
    releases: Releases, start: Start
) -> None:
    worker = start()
    worker.want("a", "webhook: x")
    assert releases.began.acquire(timeout=SOON)
    worker.want("b", "webhook: y")
    worker.end(0)
    releases.let_through.release()
    worker.end(SOON)
    assert [asked_by for asked_by, _ in releases.seen] == ["webhook: x"]
