from datetime import UTC, datetime, timedelta

import pytest

from millrace.serving.batch.monitoring.batch_plots import runs_figure, throughput_figure
from millrace.serving.batch.monitoring.throughput import (
    Forecast,
    Sample,
    Work,
    cost_per_million,
    forecast,
    is_short,
    peak,
    per_day,
    seconds_left,
    steady,
    throughput,
    unit_of,
)

NOW = datetime(2026, 3, 1, 2, tzinfo=UTC)


def rows(*points: tuple[float, int]) -> list[Sample]:
    return [Sample(seconds, Work(rows=count)) for seconds, count in points]


def even(rate: int, seconds: int, step: int = 10, start: int = 0) -> list[Sample]:
    """Samples of a job that works evenly once it has started."""
    times = range(start + step, start + seconds + 1, step)
    return rows(*((time, rate * (time - start)) for time in times))


def test_work_adds_up() -> None:
    assert sum([Work(1, 2, 3), Work(4, 5, 6)], Work()) == Work(5, 7, 9)


@pytest.mark.parametrize(("work", "unit"), [(Work(3, 2, 1), "tokens"), (Work(3), "rows")])
def test_work_without_tokens_is_counted_in_rows(work: Work, unit: str) -> None:
    assert unit_of([Sample(0, Work()), Sample(1, work)]) == unit


def test_a_rate_per_day_is_that_of_the_wall_time() -> None:
    assert per_day(1_000_000, 3_600) == 24_000_000


def test_no_time_is_no_rate() -> None:
    assert per_day(0, 0) == 0


@pytest.mark.parametrize(("seconds", "short"), [(599.9, True), (600.0, False)])
def test_a_run_under_ten_minutes_is_short(seconds: float, short: bool) -> None:
    assert is_short(seconds) is short


def test_the_steady_rate_leaves_start_up_out() -> None:
    assert steady(even(5, seconds=200, start=300)) == pytest.approx(5)


def test_the_steady_rate_leaves_the_tail_out() -> None:
    assert steady([*even(5, seconds=200), *rows((900, 1_005))]) == pytest.approx(5)


def test_the_steady_rate_is_of_the_unit_that_is_asked_for() -> None:
    samples = [Sample(time, Work(time, 10 * time, 2 * time)) for time in range(1, 21)]
    rates = [steady(samples, unit) for unit in (None, "rows", "tokens_in", "tokens_out")]
    assert rates == pytest.approx([12, 1, 10, 2])


def test_samples_between_commits_change_no_steady_rate() -> None:
    commits = even(5, seconds=200, step=20)
    polled = [Sample(each.seconds + 7, each.work) for each in commits]
    both = sorted([*commits, *polled], key=lambda each: each.seconds)
    assert steady(both) == steady(commits)


@pytest.mark.parametrize("samples", [[], rows((9, 9)), rows((9, 50), (19, 100))])
def test_too_few_commits_have_no_steady_rate(samples: list[Sample]) -> None:
    assert steady(samples) is None


def test_the_peak_is_the_best_window() -> None:
    samples = rows((100, 100), (160, 700), (260, 800))
    assert peak(samples, 60) == pytest.approx(10)


def test_a_window_may_be_longer_than_a_burst() -> None:
    samples = rows((100, 100), (160, 700), (260, 800))
    assert peak(samples, 120) == pytest.approx((600 + 60) / 120)


def test_work_at_an_even_rate_peaks_at_it() -> None:
    assert peak(even(5, seconds=200), 33) == pytest.approx(5)


@pytest.mark.parametrize("samples", [[], rows((30, 10))])
def test_a_job_shorter_than_the_window_has_no_peak(samples: list[Sample]) -> None:
    assert peak(samples, 60) is None


def test_the_rest_takes_as_long_as_the_rate_says() -> None:
    assert seconds_left(even(5, seconds=200), 2_000) == pytest.approx(200)


def test_the_forecast_goes_by_the_recent_rate() -> None:
    samples = rows((100, 10), (200, 20), (300, 1_020), (400, 2_020))
    assert seconds_left(samples, 3_020) == pytest.approx(100)


def test_a_wait_like_the_others_changes_no_forecast() -> None:
    samples = even(5, seconds=200)
    assert seconds_left([*samples, *rows((208, 1_000))], 2_000) == pytest.approx(200, rel=0.01)


def test_a_standstill_lengthens_the_forecast() -> None:
    samples = even(5, seconds=200)
    assert seconds_left([*samples, *rows((2_000, 1_000))], 2_000) > 2_000


def test_nothing_is_left_of_work_that_is_done() -> None:
    assert seconds_left(rows((10, 100)), 100) == 0


@pytest.mark.parametrize("samples", [[], rows((10, 0)), rows((10, 10)), rows((10, 10), (900, 10))])
def test_there_is_no_forecast_before_there_is_anything_to_go_by(samples: list[Sample]) -> None:
    assert seconds_left(samples, 100) is None


def test_a_million_tokens_cost_what_the_machines_do() -> None:
    assert cost_per_million(2.5, 7_200, 10_000_000) == pytest.approx(0.5)


def test_no_tokens_have_no_price() -> None:
    assert cost_per_million(2.5, 7_200, 0) is None


@pytest.mark.parametrize(("deadline", "late"), [(150, 50), (500, -300)])
def test_a_forecast_tells_when_a_job_ends_and_how_late(deadline: int, late: float) -> None:
    found = forecast(200, NOW, NOW + timedelta(seconds=deadline))
    assert found == Forecast(200, NOW + timedelta(seconds=200), late)


@pytest.mark.parametrize(("late", "told"), [(None, False), (-1.0, False), (1.0, True)])
def test_a_forecast_is_late_after_its_deadline_only(late: float | None, told: bool) -> None:
    assert Forecast(9, NOW, late).is_late is told


def test_the_throughput_of_a_job_is_told_from_end_to_end() -> None:
    found = throughput(even(5, seconds=200, start=200))
    assert (found.unit, found.count, found.seconds) == ("rows", 1_000, 400)


def test_the_throughput_of_a_job_is_told_without_start_up() -> None:
    assert throughput(even(5, seconds=200, start=200)).steady == pytest.approx(5)


def test_the_throughput_of_no_samples_is_nothing() -> None:
    assert throughput([]).count == 0


@pytest.mark.parametrize(
    ("work", "titles"),
    [(Work(5), ["rows/s"]), (Work(5, 4, 3), ["input tokens/s", "output tokens/s"])],
)
def test_input_and_output_tokens_are_drawn_apart(work: Work, titles: list[str]) -> None:
    figure = throughput_figure([Sample(9, work)])
    assert [axes.get_title().partition(",")[0] for axes in figure.axes] == titles
    assert "too few blocks for a curve" in figure.axes[0].get_title()


def test_a_run_without_a_steady_rate_is_drawn_from_end_to_end() -> None:
    axes = runs_figure([(NOW, 1e9, None)]).axes[0]
    assert [line.get_label() for line in axes.lines] == ["from end to end"]


def test_a_picture_of_nothing_can_be_drawn() -> None:
    for figure in (throughput_figure([]), runs_figure([])):
        figure.draw_without_rendering()
