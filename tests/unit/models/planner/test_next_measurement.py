"""Which run to measure next, with ledgers made by hand."""

from dataclasses import replace

from millrace.models.planner.measurements import Measurement
from millrace.models.planner.next_measurement import choose_measurement, shares_of, terms_of
from millrace.models.planner.published_runs import published_fits
from tests.unit.models.planner.test_measurements import FIRST
from tests.unit.models.planner.test_sheet import CPU, ROWS_WORK, SERVING, TRAINING

FITS = published_fits()
LARGE = replace(
    ROWS_WORK,
    training=replace(TRAINING, flops_per_unit=3e13, memory={"weights": 4e9}),
    online=replace(SERVING, flops_per_unit=1e13),
)
TREES = replace(
    ROWS_WORK,
    training=replace(TRAINING, engine="xgboost"),
    online=replace(SERVING, engine="trees"),
    batch=replace(SERVING, engine="trees"),
)
WORKS = {"small.yaml": ROWS_WORK, "trees.yaml": TREES}


def ledger(work, times=3) -> list[Measurement]:
    """Return a ledger in which a work was measured several times."""
    terms = terms_of(work, CPU).items()
    own = [replace(FIRST, quantity=name, terms=each) for name, each in terms]
    return own * times


def choose(works, measurements, fits=FITS):
    return choose_measurement(works, CPU, fits, measurements)


def test_what_was_measured_is_not_measured_again():
    assert choose(WORKS, ledger(ROWS_WORK)).file == "trees.yaml"
    assert choose(WORKS, ledger(TREES)).file == "small.yaml"


def test_a_size_that_leans_on_other_terms_teaches_more_than_the_same_again():
    works = {"small.yaml": ROWS_WORK, "large.yaml": LARGE}
    assert choose(works, ledger(ROWS_WORK)).file == "large.yaml"
    assert choose(works, ledger(LARGE)).file == "small.yaml"


def test_of_equals_the_first_is_chosen():
    assert choose({"b.yaml": ROWS_WORK, "a.yaml": ROWS_WORK}, []).file == "b.yaml"


def test_it_names_the_quantity_with_the_widest_interval():
    wide = replace(FITS["online_call"], low=0.1, high=10.0)
    found = choose({"small.yaml": ROWS_WORK}, [], {**FITS, "online_call": wide})
    assert found.quantity == "online_call"
    assert found.command == "millrace run small.yaml"
    assert "measured 0 times on this machine, interval -90% to +900%" in str(found)


def test_a_batch_job_is_scored_after_its_run():
    wide = replace(FITS["batch_job"], low=0.01, high=100.0)
    found = choose({"small.yaml": ROWS_WORK}, [], {**FITS, "batch_job": wide})
    assert found.command == "millrace run small.yaml && millrace score small.yaml"
    unknown = replace(ROWS_WORK, batch_units=None)
    assert choose({"u.yaml": unknown}, [], {**FITS, "batch_job": wide}).quantity != "batch_job"


def test_without_a_pipeline_or_an_interval_nothing_is_next():
    assert choose({}, []) is None
    assert choose(WORKS, [], {}) is None


def test_the_shares_of_an_estimate_are_one():
    for name, terms in terms_of(ROWS_WORK, CPU).items():
        assert abs(sum(shares_of(FITS[name], terms)) - 1) < 1e-9
    assert set(shares_of(FITS["online_call"], dict.fromkeys(FITS["online_call"].weights, 0.0))) == {
        0.0
    }
