"""The ledger of the planner: what is written is read, and a machine's own runs count."""

import json
import random
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import mean, median

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.planner.estimates import QUANTITIES
from millrace.models.planner.measurements import (
    DISTURBED,
    Measurement,
    accuracy_of,
    append_measurements,
    fits_of,
    read_measurements,
    scaled_fit,
)
from millrace.models.planner.published_runs import counted_terms, measured_runs, published_fits
from tests.docs_pages import ROOT

FIRST = Measurement(
    quantity="training_step",
    model="m",
    kind="graph",
    machine="this one",
    run_id="r0",
    estimate=0.1,
    low=0.05,
    high=0.2,
    measured=0.125,
    terms=dict.fromkeys(QUANTITIES["training_step"].terms, 0.0) | {"operations": 0.1},
    time=datetime(2026, 11, 26, tzinfo=UTC),
)


def test_what_is_written_is_read_the_oldest_first(tmp_path):
    uri = str(tmp_path / "planner" / "measurements")
    later = replace(FIRST, run_id="r1", time=FIRST.time + timedelta(hours=1), high=float("inf"))
    append_measurements(uri, [later])
    append_measurements(uri, [FIRST])
    assert read_measurements(uri) == [FIRST, later]


def test_without_a_ledger_there_is_nothing_to_read(tmp_path):
    assert read_measurements(str(tmp_path / "none")) == []
    append_measurements(str(tmp_path / "none"), [])
    assert not (tmp_path / "none").exists()


def test_a_quantity_of_another_release_is_left_out(tmp_path):
    uri = str(tmp_path / "measurements")
    append_measurements(uri, [FIRST, replace(FIRST, quantity="what is this")])
    assert read_measurements(uri) == [FIRST]


def write_rows(uri, **columns):
    """Write rows like `FIRST` with some columns replaced, of any type; None: without the column."""
    row = {**asdict(FIRST), "terms": json.dumps(FIRST.terms)}
    table = {name: [value] for name, value in row.items()} | columns
    write_deltalake(uri, pa.table({name: each for name, each in table.items() if each}))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("terms", text) for text in (None, "", "{", "[1]", "3", '{"operations": null}')],
        *[("terms", f'{{"operations": {text}}}') for text in ('"x"', "true", "NaN", "1" * 400)],
        *[(name, None) for name in ("quantity", "model", "machine", "time", "low", "high")],
        *[
            (name, number)
            for name in ("estimate", "measured")
            for number in (None, 0.0, -1.0, float("nan"), float("inf"))
        ],
        ("low", float("nan")),
    ],
)
def test_a_damaged_row_is_left_out(tmp_path, column, value):
    uri = str(tmp_path / "measurements")
    append_measurements(uri, [FIRST])
    rows = DeltaTable(uri).to_pyarrow_table()
    field = rows.schema.field(column)
    at = rows.schema.get_field_index(column)
    damaged = rows.set_column(at, field, pa.array([value], field.type))
    write_deltalake(uri, damaged, mode="append")
    assert read_measurements(uri) == [FIRST]


@pytest.mark.parametrize("columns", [{"low": None}, {"time": None}])
def test_a_ledger_that_lacks_a_column_is_a_warning(tmp_path, caplog, columns):
    uri = str(tmp_path / "measurements")
    write_rows(uri, **columns)
    assert read_measurements(uri) == []
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize(
    "columns",
    [{"terms": [3]}, {"time": ["yesterday"]}, {"measured": ["much"]}, {"quantity": [[1]]}],
)
def test_a_ledger_of_other_types_has_no_measurements(tmp_path, columns):
    uri = str(tmp_path / "measurements")
    write_rows(uri, **columns)
    assert read_measurements(uri) == []


def test_a_column_of_a_later_release_is_not_read(tmp_path):
    uri = str(tmp_path / "measurements")
    write_rows(uri, more=[1])
    assert read_measurements(uri) == [FIRST]


def test_a_broken_ledger_is_a_warning(tmp_path, caplog):
    uri = str(tmp_path / "measurements")
    append_measurements(uri, [FIRST])
    (data,) = Path(uri).glob("*.parquet")
    data.write_text("broken")
    assert read_measurements(uri) == []
    (Path(uri) / "_delta_log" / "00000000000000000000.json").write_text("broken")
    assert read_measurements(uri) == []
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]


def of_runs(runs, factor, machine="this one"):
    return [
        replace(
            FIRST,
            quantity=run.quantity,
            model=run.model,
            kind=run.kind,
            run_id=run.model,
            machine=machine,
            terms=run.terms,
            measured=slowed(run, factor),
        )
        for run in runs
    ]


def slowed(run, factor):
    """Return what a machine measures that takes `factor` times as long, and as much memory."""
    return run.measured * (factor if QUANTITIES[run.quantity].unit == "seconds" else 1.0)


def split_runs(seed):
    """Return the runs of one configuration of each kind that no weight is from, and the others."""
    runs = [run for run in measured_runs() if run.machine == "AMD EPYC" and run.is_held_out]
    names = {kind: sorted({r.model for r in runs if r.kind == kind}) for kind in KINDS}
    chance = random.Random(seed)
    chosen = {chance.choice(each) for each in names.values()}
    three = [run for run in runs if run.model in chosen]
    return three, [run for run in runs if run.model not in chosen]


KINDS = ("graph", "gradient_boosting", "language")


def errors_of(fits, runs, factor):
    """Median error by quantity, on a machine that takes `factor` times as long."""
    found = {}
    for name in QUANTITIES:
        own = [run for run in runs if run.quantity == name]
        estimates = [
            fits[run.kind][name].estimate(run.terms).value / slowed(run, factor) for run in own
        ]
        found[name] = median(abs(each - 1) for each in estimates)
    return found


def mean_errors(factor):
    """Return the mean over draws of the errors before and after three runs, by quantity."""
    draws = []
    before = dict.fromkeys(KINDS, published_fits())
    for seed in range(20):
        three, others = split_runs(seed)
        own = of_runs(three, factor)
        after = {k: fits_of([m for m in own if m.kind == k], "this one") for k in KINDS}
        draws.append([errors_of(fits, others, factor) for fits in (before, after)])
    return {name: [mean(draw[n][name] for draw in draws) for n in (0, 1)] for name in QUANTITIES}


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_three_runs_bring_a_machine_of_another_speed_nearer(factor):
    for name, (before, after) in mean_errors(factor).items():
        if QUANTITIES[name].unit == "seconds":
            assert after < 0.85 * before, name


def test_the_page_has_what_three_runs_change():
    page = " ".join((ROOT / "docs/planner.md").read_text().split())

    def change(factor, name, join):
        return join.format(*(f"{100 * each:.0f}" for each in mean_errors(factor)[name]))

    assert change(2.5, "training_step", "step from {} to {}%") in page
    assert change(2.5, "online_unit", "of throughput from {} to {}%") in page
    assert change(2.5, "batch_job", "of a batch job from {} to {}%") in page
    assert change(1.0, "online_unit", "they take throughput from {} to {}%") in page
    assert change(1.0, "batch_job", "and a batch job from {} to {}%") in page


def test_three_runs_change_little_where_nothing_is_to_be_learnt():
    for name, (before, after) in mean_errors(1.0).items():
        assert after < before + 0.10, name


def test_a_measurement_that_lacks_a_term_with_a_weight_does_not_count():
    old = replace(FIRST, terms={"operations": 1e-9})
    assert fits_of([old], "this one") == published_fits()
    weights = published_fits()["training_step"].weights
    (idle, *_) = [name for name, weight in weights.items() if not weight]
    whole = dict.fromkeys(weights, 0.1)
    del whole[idle]
    as_planned = sum(0.1 * weight for weight in weights.values())
    own = replace(FIRST, terms=whole, measured=as_planned)
    rows = fits_of([own], "this one")["training_step"].rows
    assert rows == published_fits()["training_step"].rows + 1


@pytest.mark.parametrize(
    ("name", "free", "counted", "on_gpu"),
    [
        ("training_memory", "runtime", counted_terms("training_memory", on_gpu=False), False),
        ("online_memory", "runtime", counted_terms("online_memory", on_gpu=False), False),
        ("training_step", "kernels", ("operations", "memory"), True),
    ],
)
def test_what_is_counted_keeps_a_weight_of_one(name, free, counted, on_gpu):
    fit = published_fits(on_gpu=on_gpu)[name]
    terms = dict.fromkeys(fit.weights, 1e6)
    less = replace(FIRST, quantity=name, terms=terms, measured=fit.estimate(terms).value / 4)
    moved = fits_of([less] * 9, "this one", on_gpu=on_gpu)[name].weights
    assert all(moved[each] >= 1 for each in counted)
    assert moved[free] < fit.weights[free] / 2


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_run_that_is_far_off_moves_nothing(factor):
    three, _ = split_runs(0)
    own = of_runs(three, factor)
    times = [each for each in own if QUANTITIES[each.quantity].unit == "seconds"]
    assert fits_of(times, "this one") == published_fits()


def test_of_two_runs_the_nearer_one_counts():
    fit = published_fits()["training_step"]
    near, both, far = (scaled_fit(fit, r, (), spread=0.3) for r in ([1.1], [4.0, 1.1], [4.0]))
    assert near.weights["rows"] < both.weights["rows"] < far.weights["rows"]


def test_what_was_measured_on_a_machine_with_disturbed_figures_does_not_count():
    three, _ = split_runs(0)
    own = [replace(e, terms={**e.terms, DISTURBED: 1.0}) for e in of_runs(three, 3.0)]
    assert fits_of(own, "this one") == published_fits() != fits_of(of_runs(three, 3.0), "this one")


def test_another_machines_measurements_do_not_count():
    three, _ = split_runs(0)
    assert fits_of(of_runs(three, 3.0, "another"), "this one") == published_fits()


def test_accuracy_is_by_quantity_and_machine():
    others = [
        FIRST,
        replace(FIRST, measured=0.08, high=float("inf")),
        replace(FIRST, measured=0.3),
        replace(FIRST, machine="another", high=float("inf")),
        replace(FIRST, quantity="training_memory"),
    ]
    found = {(each.quantity, each.machine): each for each in accuracy_of(others)}
    step = found["training_step", "this one"]
    assert step.count == 3
    assert step.median_error == pytest.approx(0.25)
    assert step.held == 0.5
    assert found["training_step", "another"].held is None
    assert len(found) == 3
