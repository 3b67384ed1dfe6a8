from dataclasses import replace

import pytest

from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.progress_counter import ActorProgress
from millrace.serving.batch.monitoring.throughput import Sample, Work
from millrace.tasks.batch.batch_run import description_of, metrics_of

REPORT = BatchReport(
    table="t",
    dead_letters="d",
    table_version=1,
    date="2026-01-05",
    model="m",
    model_version=3,
    model_digest="x",
    fingerprint="f",
    job="f-1",
    rows=120,
    scored=115,
    dead=5,
    resumed=15,
    tokens_in=None,
    tokens_out=None,
    seconds=50.0,
)
SAMPLES = [Sample(second, Work(2 * second)) for second in range(51)]
TOLD = {"a": ActorProgress(1.0, 40.0, Work(60)), "b": ActorProgress(1.0, 25.0, Work(44))}


def test_rows_per_day_are_those_that_this_run_wrote() -> None:
    found = metrics_of(REPORT, SAMPLES, TOLD)
    assert found["per_day"] == 100 / 50 * 86_400
    assert found["steady_per_day"] == pytest.approx(2 * 86_400, rel=0.05)
    assert (found["rows"], found["scored"], found["dead"], found["resumed"]) == (120, 115, 5, 15)


def test_each_actor_has_its_share_of_the_time() -> None:
    found = metrics_of(REPORT, SAMPLES, TOLD)
    assert (found["actor_0_utilisation"], found["actor_1_utilisation"]) == (0.5, 0.8)


def test_engines_that_do_not_tell_when_they_are_busy_have_no_share() -> None:
    found = metrics_of(REPORT, SAMPLES, {"engines": ActorProgress(work=Work(104))})
    assert not [name for name in found if "utilisation" in name]
    assert found["redone_rows"] == 4


def test_what_was_answered_and_is_not_in_the_output_was_wasted() -> None:
    assert metrics_of(REPORT, SAMPLES, TOLD)["redone_rows"] == 4


def test_tokens_are_told_in_and_out_with_their_cost() -> None:
    report = replace(REPORT, tokens_in=900, tokens_out=400)
    samples = [Sample(50.0, Work(100, 600, 300))]
    found = metrics_of(report, samples, TOLD, price_per_hour=3.6)
    assert (found["tokens_in"], found["tokens_out"]) == (600, 300)
    assert found["tokens_in_per_day"] == 600 / 50 * 86_400
    assert found["tokens_out_per_day"] == 300 / 50 * 86_400
    assert found["per_day"] == 900 / 50 * 86_400
    assert found["cost_per_million_tokens"] == pytest.approx(0.05 / 900 * 1e6)


def test_a_model_without_tokens_has_the_cost_of_its_rows() -> None:
    found = metrics_of(REPORT, SAMPLES, TOLD, 3.6)
    assert not [name for name in found if "token" in name]
    assert found["cost_per_million_rows"] == pytest.approx(0.05 / 100 * 1e6)


def test_the_description_leads_to_the_version_and_says_what_was_extrapolated() -> None:
    text = description_of(REPORT, per_day=172_800, unit="rows")
    assert "115 of 120 rows" in text
    assert "[m version 3](#/models/m/versions/3?workflowType=machine_learning)" in text
    assert text.endswith("172,800 rows a day, extrapolated from 50 s.")
    assert "extrapolated" not in description_of(replace(REPORT, seconds=4000), 1.0, "tokens")


def test_what_was_written_and_not_committed_counts_for_nothing() -> None:
    twice = replace(REPORT, scored=65, dead=55, tokens_in=900, tokens_out=400)
    samples = [Sample(50.0, Work(100, 600, 300))]
    found = metrics_of(twice, samples, TOLD, price_per_hour=3.6)
    assert (found["tokens_in"], found["tokens_out"]) == (300, 150)
    assert found["per_day"] == 450 / 50 * 86_400
    assert found["cost_per_million_tokens"] == pytest.approx(50 / 3600 * 3.6 / 450 * 1e6)
