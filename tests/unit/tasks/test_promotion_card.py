"""What a promotion card says, and what it says where little is known."""

from dataclasses import replace

import numpy as np

from millrace.models.comparison.paired_scores import PairedResult
from millrace.serving.profile.expectation import Expectation, Recorded
from millrace.serving.profile.twin import Arrivals
from millrace.tasks.reports.promotion_card import PromotionCard, VersionRecord, make_card

NOON = 1_795_608_000.0
FITS = Expectation(
    p99_ms=4.25,
    missed_minutes=0,
    first_missed=None,
    verdict="would have met its goal all the time",
    share=0.1,
    peak_share=0.42,
    machine_seconds=0.001,
    too_large=0,
)
TOO_SLOW = replace(
    FITS,
    p99_ms=12_345.6,
    missed_minutes=11,
    first_missed=NOON,
    verdict="would have missed its goal for 11 min, first at 12:00 UTC",
    too_large=3,
)
RECORDED = Recorded(
    arrivals=Arrivals(np.zeros(900), np.ones(900, np.int64)),
    hours=23.5,
    estimated=0.25,
    left_out=100,
    peak=NOON,
    peak_rate=12.5,
    measured_p99_ms=5.0,
)
SERVED = VersionRecord(3, "onnx-fp32", "accuracy", 0.9, 100, 2_000_000, 61.0, expected=FITS)
CANDIDATE = VersionRecord(4, "onnx-int8", "accuracy", 0.95, 100, 500_000, 44.4, expected=TOO_SLOW)
COMPARED = PairedResult(100, 0.9, 0.95, 0.05, -0.01, 0.11, 0.1, "a test")


def said(card: PromotionCard) -> dict[str, tuple[str, str]]:
    return {what: (now, after) for what, now, after in card.rows}


def test_all_figures_are_beside_each_other() -> None:
    card = make_card("m", CANDIDATE, SERVED, RECORDED, price_per_hour=3.6, compared=COMPARED)
    assert card.head == ("", "now: version 3", "after: version 4")
    rows = said(card)
    peak = "p99 at the peak (12:00 UTC, 12.5 requests/s)"
    assert rows[f"{peak}, expected"] == ("4.25 ms", "12,346 ms")
    assert rows[f"{peak}, measured"] == ("5 ms", "–")
    assert rows["goal in the recorded requests"] == (FITS.verdict, TOO_SLOW.verdict)
    assert rows["CPU share at the peak"] == ("42.0%", "42.0%")
    assert rows["cost of a million requests"] == ("1 dollars", "1 dollars")
    assert rows["memory"] == ("61 MB", "44 MB")
    assert rows["size of the files"] == ("2.0 MB", "500.0 kB")
    assert rows["accuracy"] == ("0.9 (95%: 0.8256 to 0.9448)", "0.95 (95%: 0.8882 to 0.9785)")
    difference = "+0.0500 (95%: -0.0100 to +0.1100): no difference shown"
    assert rows["accuracy on the same 100 rows"] == ("–", difference)
    assert card.notes == (
        "1,000 requests within 23.5 hours, of which the 900 in the busiest minutes are replayed; "
        "the rows of 25% are estimated from their bytes",
        "version 4 would refuse 3 requests with too many rows",
    )


def test_without_a_profile_the_card_says_what_makes_one() -> None:
    plain = replace(CANDIDATE, memory_mb=None, expected=None, unknown="run this")
    card = make_card("m", plain, None, None)
    assert card.head == ("", "nothing is live", "after: version 4")
    assert set(said(card)) == {"accuracy", "size of the files", "variant"}
    assert said(card)["variant"] == ("–", "onnx-int8")
    assert card.notes == (
        "no requests for m are recorded in the last 24 hours",
        "version 4: run this",
    )


def test_what_is_known_of_one_version_only_is_shown() -> None:
    card = make_card("m", replace(CANDIDATE, expected=None), SERVED, RECORDED)
    assert said(card)["CPU share"] == ("10.0%", "?")
    assert "cost of a million requests" not in said(card)
    assert card.notes[-1].startswith("batch.price_per_hour in the pipeline file adds")


def test_a_metric_of_another_kind_has_no_interval() -> None:
    number = replace(CANDIDATE, metric_name="r2")
    assert said(make_card("m", number, None, None))["r2"] == ("–", "0.95")
    nothing = replace(CANDIDATE, metric=None)
    assert "accuracy" not in said(make_card("m", nothing, None, None))


def test_the_next_step_is_a_release_if_the_alias_has_moved() -> None:
    card = make_card("m", CANDIDATE, SERVED, RECORDED)
    assert card.next_step == "millrace promote m 4"
    assert replace(card, is_champion=True).next_step == "millrace release"


def test_the_next_step_is_a_profile_if_a_release_would_refuse_the_version() -> None:
    card = replace(make_card("m", CANDIDATE, SERVED, None), refusal="it has no serving profile")
    assert card.next_step == "millrace profile FILE --version 4"
    assert replace(card, is_champion=True).next_step == "millrace release --profile"


def test_the_page_has_the_same_card() -> None:
    card = make_card("m", CANDIDATE, SERVED, RECORDED, 3.6)
    page = card.as_markdown()
    assert page.startswith("### If this version is promoted\n\n|  | now: version 3 |")
    assert "| memory | 61 MB | 44 MB |" in page
    assert page.endswith("- version 4 would refuse 3 requests with too many rows")
