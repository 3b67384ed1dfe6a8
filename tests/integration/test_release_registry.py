"""What becomes of a registry while it is released from: by other tools, by people, by faults."""

import errno
import sys
import threading
from itertools import count

import pytest
from mlflow.exceptions import MlflowException

from millrace.models.common.hardware import this_machine
from millrace.models.registry.tracking import client
from millrace.serving.release.golden_batch import GoldenBatch
from millrace.serving.release.outcome import Outcome
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_folder import ONNX, Artifact
from tests.integration.asked import Asking, Line
from tests.integration.planted import Planted, good, ingest_rows, plant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NAMES = (f"kept{number}" for number in count())
NO_WORSE = {"promotion": {"require": {"max_metric_drop": 0.0}}}
APPROVED = {"promotion": {"require": {"approval": True}}}


@pytest.fixture
def live(line: Line) -> Planted:
    """A model of its own, whose version 1 is live."""
    name = next(NAMES)
    ingest_rows(line.installation, name)
    first = plant(line.installation, name, good(0))
    line.promote(first)
    line.release()
    assert line.client.live_version(name) == 1
    return first


def released(line: Line, planted: Planted) -> Outcome:
    line.promote(planted)
    return next(each for each in line.release() if each.model == planted.name)


def reason(outcome: Outcome) -> str:
    assert outcome.error is not None
    return f"{outcome.error.what}; {outcome.error.seen}"


def test_a_version_of_another_tool_is_refused_on_a_model_that_we_serve(
    line: Line, live: Planted
) -> None:
    store = client(line.installation.tracking_uri)
    made = store.create_model_version(live.name, live.folder.as_uri())
    other = Planted(live.name, int(made.version), live.folder)
    with Asking(line, live.name, 0) as asking:
        error = released(line, other)
    assert "digest" in reason(error)
    assert asking.wrong == []
    assert line.client.live_version(live.name) == 1
    assert line.tags(other)["millrace.status"] == "refused"
    assert "digest" in line.tags(other)["millrace.reason"]


def test_a_model_of_another_tool_is_left_alone(line: Line, live: Planted) -> None:
    store = client(line.installation.tracking_uri)
    name = next(NAMES)
    store.create_registered_model(name)
    store.create_model_version(name, live.folder.as_uri())
    other = Planted(name, 1, live.folder)
    line.promote(other)
    assert name not in {outcome.model for outcome in line.release()}
    assert not [tag for tag in line.tags(other) if tag.startswith("millrace.")]


def test_a_live_version_that_was_deleted_is_no_bar_to_the_next(line: Line, live: Planted) -> None:
    client(line.installation.tracking_uri).delete_model_version(live.name, str(live.number))
    second = plant(line.installation, live.name, good(0, pipeline=NO_WORSE))
    assert released(line, second).error is None
    assert line.client.live_version(live.name) == 2
    assert line.tags(second)["millrace.status"] == "live"


@pytest.mark.parametrize("author", ["", None], ids=["empty", "no run"])
def test_nobody_approves_what_nobody_is_known_to_have_trained(
    line: Line, live: Planted, author: str | None
) -> None:
    tags = {"millrace.approved_by": "bob"}
    second = plant(line.installation, live.name, good(0, pipeline=APPROVED, tags=tags))
    store = client(line.installation.tracking_uri)
    run = store.get_model_version(second.name, str(second.number)).run_id
    assert run is not None
    if author is None:
        store.delete_tag(run, "mlflow.user")
    else:
        store.set_tag(run, "mlflow.user", author)
    assert "not known who ran its training" in reason(released(line, second))
    assert line.client.live_version(live.name) == 1


@pytest.mark.parametrize("kind", ["x86_64, amx_int8", this_machine().kind])
def test_a_variant_that_was_chosen_on_another_kind_of_machine_is_flagged(
    line: Line, live: Planted, kind: str
) -> None:
    second = plant(line.installation, live.name, good(0, machine_kind=kind))
    assert released(line, second).error is None
    caution = line.releases(live.name)[-1].evidence.get("caution")
    if kind == this_machine().kind:
        assert caution is None
    else:
        assert caution.startswith("its variant was chosen on a machine with x86_64, amx_int8;")
        assert this_machine().kind in caution


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        MlflowException("the server went away"),  # the client's own, when the connection breaks
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_of_this_machine_or_of_mlflow_refuses_nothing(
    line: Line, live: Planted, fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = plant(line.installation, live.name, good(0))

    def broken(*_: object, **__: object) -> None:
        raise fault

    with monkeypatch.context() as patched, Asking(line, live.name, 0) as asking:
        if isinstance(fault, OSError):
            patched.setattr("millrace.serving.triton.repository.Repository.stage", broken)
        else:
            patched.setattr("mlflow.MlflowClient.get_model_version_download_uri", broken)
        outcome = released(line, second)
    assert outcome.error is not None
    assert outcome.error.transient, outcome.error
    assert asking.wrong == []
    assert [event.kind for event in line.releases(live.name)] == ["proved", "live"]
    assert released(line, second).error is None
    assert line.client.live_version(live.name) == 2


def test_a_trial_that_cannot_be_swept_keeps_no_version_from_going_live(
    line: Line, live: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = line.installation.model_repository / f"{live.name}.trial-1-abcd"
    left.mkdir()
    second = plant(line.installation, live.name, good(0))

    remove = Repository.remove_model

    def stuck(self: Repository, name: str) -> bool:
        if name == left.name:
            raise OSError(errno.EACCES, "Permission denied", str(left))
        return remove(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(Repository, "remove_model", stuck)
        assert released(line, second).error is None
    assert line.client.live_version(live.name) == 2
    assert left.exists()
    line.release()
    assert not left.exists()


@pytest.mark.chaos
def test_a_candidate_that_hangs_keeps_no_other_model_waiting(
    line: Line, live: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = plant(line.installation, next(NAMES), good(0))
    slow = plant(line.installation, live.name, good(0))
    hangs, goes_on = threading.Event(), threading.Event()
    alone = GoldenBatch.smoke_test

    def hanging(expected: GoldenBatch, artifact: Artifact) -> None:
        if live.name in str(artifact.files[ONNX]):
            hangs.set()
            assert goes_on.wait(60)
        alone(expected, artifact)

    monkeypatch.setattr(GoldenBatch, "smoke_test", hanging)
    line.promote(slow)
    first = threading.Thread(target=line.release)
    first.start()
    try:
        assert hangs.wait(30)
        line.promote(other)
        assert [each.error for each in line.release(other.name)] == [None]
        assert line.client.live_version(other.name) == 1
        assert line.client.live_version(live.name) == 1
    finally:
        goes_on.set()
        first.join(60)
    assert line.client.live_version(live.name) == 2
