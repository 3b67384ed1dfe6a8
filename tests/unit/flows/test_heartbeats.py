"""A flow sends no heartbeats, unless the user chose them or has a Prefect server of their own."""

from collections.abc import Iterator

import pytest
from prefect import Flow
from prefect.settings import get_current_settings, temporary_settings
from prefect.settings.models.flows import FlowsSettings

from millrace.flows.heartbeats import leave_out_heartbeats


@pytest.fixture(autouse=True)
def of_flows(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowsSettings]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", raising=False)
    with temporary_settings() as used:
        used.flows = FlowsSettings()
        yield used.flows


def frequency_in_run() -> int | None:
    leave_out_heartbeats(None, None, None)
    return get_current_settings().flows.heartbeat_frequency


def test_heartbeats_are_left_out() -> None:
    assert frequency_in_run() is None
    assert frequency_in_run() is None


def test_heartbeats_that_the_user_chose_stay(of_flows: FlowsSettings) -> None:
    of_flows.heartbeat_frequency = 60
    assert frequency_in_run() == 60


def test_heartbeats_stay_on_a_server_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect:4200/api")
    assert frequency_in_run() == 180


def test_every_flow_leaves_them_out() -> None:
    from millrace.flows.clean_up import clean_up
    from millrace.flows.release_model import release_model
    from millrace.flows.score_batch import score_batch
    from millrace.flows.train_model import train_model

    for each in (clean_up, release_model, score_batch, train_model):
        assert isinstance(each, Flow)
        assert each.on_running_hooks == [leave_out_heartbeats]
