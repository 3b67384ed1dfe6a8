import threading
from collections.abc import Callable, Iterator

import pytest

from millrace.flows.triggers.release_worker import MAX_RELEASES, ReleaseWorker
from millrace.models.common.errors import InputError, TransientError

SOON = 10.0


class Releases:
    """Releases that wait to be let through, and see the alias as it is then."""

    def __init__(self) -> None:
        self.alias = 0
        self.seen: list[tuple[str, list[str] | None, int]] = []
        self.errors: list[BaseException] = []
        self.began, self.let_through = threading.Semaphore(0), threading.Semaphore(0)
        self._at_work: list[str] = []

    def __call__(self, asked_by: str, models: list[str] | None) -> None:
        names = models or ["*"]
        assert not set(names) & set(self._at_work), "two releases of a model at a time"
        self._at_work += names
        self.began.release()
        assert self.let_through.acquire(timeout=SOON)
        for name in names:
            self._at_work.remove(name)
        self.seen.append((asked_by, models, self.alias))
        if self.errors:
            raise self.errors.pop(0)

    def begin(self) -> None:
        """Wait until a release is at work."""
        assert self.began.acquire(timeout=SOON)

    def next(self) -> None:
        """Let one release through."""
        self.begin()
        self.let_through.release()

    @property
    def asked(self) -> list[str]:
        return [asked_by for asked_by, _, _ in self.seen]


Start = Callable[..., ReleaseWorker]


@pytest.fixture
def releases() -> Releases:
    return Releases()


@pytest.fixture
def start(releases: Releases) -> Iterator[Start]:
    workers: list[ReleaseWorker] = []

    def started(*retry_seconds: float) -> ReleaseWorker:
        workers.append(ReleaseWorker(releases, retry_seconds))
        return workers[-1]

    yield started
    for worker in workers:
        for _ in range(20):
            releases.let_through.release()
        worker.stop(SOON)


def test_twelve_moves_in_a_row_end_in_the_last_one(releases: Releases, start: Start) -> None:
    worker = start()
    for version in range(1, 13):
        releases.alias = version
        worker.request("digits", f"webhook: champion of digits → version {version}")
        if version == 1:
            releases.begin()
    releases.let_through.release()
    releases.next()
    worker.stop(SOON)
    assert [alias for _, _, alias in releases.seen] == [12, 12]
    assert releases.asked[-1] == "webhook: champion of digits → version 12"


def test_a_release_that_takes_long_holds_no_other_model_up(
    releases: Releases, start: Start
) -> None:
    worker = start()
    worker.request("a", "webhook: a")
    releases.begin()
    worker.request("b", "webhook: b")
    releases.begin()  # beside the other
    worker.request(None, "webhook: started")
    releases.begin()
    for _ in range(3):
        releases.let_through.release()
    worker.stop(SOON)
    found = {asked_by: models for asked_by, models, _ in releases.seen}
    assert found == {"webhook: a": ["a"], "webhook: b": ["b"], "webhook: started": None}


def test_what_waits_for_room_goes_into_one_release(releases: Releases, start: Start) -> None:
    worker = start()
    for number in range(MAX_RELEASES):
        worker.request(f"m{number}", "watch: x")
        releases.begin()
    for name in ("a", "b"):
        worker.request(name, f"webhook: {name}")
    releases.let_through.release()
    releases.begin()
    releases.let_through.release(MAX_RELEASES)
    worker.stop(SOON)
    models = [models for _, models, _ in releases.seen]
    assert ["a", "b"] in models
    assert len(models) == MAX_RELEASES + 1


def test_what_may_pass_is_tried_again_for_the_same_wish(releases: Releases, start: Start) -> None:
    releases.errors = [TransientError("no Triton"), ConnectionError("MLflow restarts")]
    worker = start(0.01, 0.01)
    worker.request("a", "webhook: x")
    for _ in range(3):
        releases.next()
    worker.stop(SOON)
    assert [(asked_by, models) for asked_by, models, _ in releases.seen] == [
        *[("webhook: x", ["a"])] * 3
    ]


def test_a_newer_wish_ends_the_wait_before_another_try(releases: Releases, start: Start) -> None:
    releases.errors = [TransientError("no Triton")]
    worker = start(3600.0)
    worker.request("a", "webhook: x")
    releases.next()
    worker.request("a", "webhook: y")
    releases.next()
    worker.stop(SOON)
    assert releases.asked == ["webhook: x", "webhook: y"]


def test_a_wish_that_goes_on_to_fail_is_left_to_the_schedule(
    releases: Releases, start: Start
) -> None:
    releases.errors = [TransientError("no Triton")] * 2
    worker = start(0.01)
    worker.request("a", "webhook: x")
    releases.next()
    releases.next()
    worker.request("a", "webhook: y")
    releases.next()
    worker.stop(SOON)
    assert releases.asked == ["webhook: x", "webhook: x", "webhook: y"]


@pytest.mark.parametrize("error", [InputError("refused"), SystemExit("a signal of Prefect's")])
def test_the_worker_outlives_every_failure(
    releases: Releases, start: Start, error: BaseException
) -> None:
    releases.errors = [error]
    worker = start()
    worker.request("a", "webhook: x")
    releases.next()
    worker.request("a", "webhook: y")
    releases.next()
    worker.stop(SOON)
    assert releases.asked == ["webhook: x", "webhook: y"]


def test_an_end_waits_for_the_releases_under_way_and_begins_no_other(
    releases: Releases, start: Start
) -> None:
    worker = start()
    worker.request("a", "webhook: x")
    releases.begin()
    worker.request("a", "webhook: y")
    worker.stop(0)
    releases.let_through.release()
    worker.stop(SOON)
    assert releases.asked == ["webhook: x"]
