from typing import Literal

import pytest
from pydantic import ValidationError

from millrace.models.config.serving_spec import RequireSpec
from millrace.models.registry.gates import Credentials, LiveFigures, decide, refusal

NAN = float("nan")


@pytest.mark.parametrize(
    ("mode", "passed", "metric", "champion", "champion_metric", "aliases"),
    [
        ("auto", True, 0.9, None, None, (True, True)),
        ("auto", True, 0.9, 3, 0.8, (True, True)),
        ("auto", True, 0.9, 3, 0.9, (True, True)),
        ("auto", True, 0.8, 3, 0.9, (True, False)),
        ("auto", True, -0.2, 3, -0.5, (True, True)),
        ("auto", True, 0.0, 3, 0.0, (True, True)),
        ("auto", True, 0.9, 3, None, (True, False)),
        ("auto", True, NAN, 3, 0.9, (False, False)),
        ("auto", True, NAN, None, None, (False, False)),
        ("auto", True, float("inf"), None, None, (False, False)),
        ("manual", True, NAN, None, None, (False, False)),
        ("auto", True, 0.9, 3, NAN, (True, False)),
        ("auto", False, 0.9, None, None, (False, False)),
        ("auto", False, 0.9, 3, 0.1, (False, False)),
        ("manual", True, 0.9, None, None, (True, False)),
        ("manual", True, 0.9, 3, 0.1, (True, False)),
        ("manual", False, 0.9, 3, 0.1, (False, False)),
    ],
)
def test_who_gets_which_alias(
    mode: Literal["auto", "manual"],
    passed: bool,
    metric: float,
    champion: int | None,
    champion_metric: float | None,
    aliases: tuple[bool, bool],
) -> None:
    decided = decide(
        mode=mode,
        refusal=None if passed else "too large",
        metric=metric,
        champion=champion,
        champion_metric=champion_metric,
    )
    assert (decided.challenger, decided.champion) == aliases


def test_what_waits_for_labels_is_no_champion_yet() -> None:
    decided = decide(
        mode="auto", refusal=None, metric=0.9, champion=None, champion_metric=None, waits="labels"
    )
    assert (decided.challenger, decided.champion, decided.reason) == (True, False, "labels")


@pytest.mark.parametrize(
    ("asked", "live", "words"),
    [
        (0.9, None, "0 of its own predictions have a label"),
        (0.9, LiveFigures("accuracy", 0.95, 199), "199 of its own predictions have a label"),
        (0.9, LiveFigures("accuracy", 0.95, 200), None),
        (0.9, LiveFigures("accuracy", 0.9, 200), None),
        (0.9, LiveFigures("accuracy", 0.85, 1000), "accuracy of 0.85 on 1,000 labels is below"),
        (0.9, LiveFigures("accuracy", NAN, 1000), "is below 0.9"),
        ({"value": 2.5, "labels": 10}, LiveFigures("rmse", 2.0, 10), None),
        ({"value": 2.5, "labels": 10}, LiveFigures("rmse", 3.0, 10), "rmse of 3 on 10 labels"),
        ({"value": 2.5, "labels": 10}, LiveFigures("rmse", NAN, 10), "is above 2.5"),
    ],
)
def test_own_predictions_must_be_right_often_enough(
    asked: object, live: LiveFigures | None, words: str | None
) -> None:
    require = RequireSpec.model_validate({"live_metric": asked})
    found = refusal(require, Credentials(True, 0.9, "accuracy", "", {}, live=live), None)
    assert found is None if words is None else found is not None and words in found


@pytest.mark.parametrize("asked", [True, "much", {"labels": 3}, {"value": 1, "labels": 0}])
def test_what_is_no_live_metric_is_refused(asked: object) -> None:
    with pytest.raises(ValidationError):
        RequireSpec.model_validate({"live_metric": asked})


@pytest.mark.parametrize(
    ("passed", "metric", "champion_metric", "reason"),
    [
        (True, 0.95, 0.9, "no worse: 0.9500 against 0.9000 of champion version 3"),
        (True, 0.85, 0.9, "worse: 0.8500 against 0.9000 of champion version 3"),
        (True, 0.85, None, "champion version 3 cannot be measured on this test split"),
        (False, 0.95, 0.9, "it did not pass its gates: too large"),
        (True, NAN, 0.9, "its metric is nan"),
    ],
)
def test_the_reason_is_for_people(
    passed: bool, metric: float, champion_metric: float | None, reason: str
) -> None:
    decided = decide(
        mode="auto",
        refusal=None if passed else "too large",
        metric=metric,
        champion=3,
        champion_metric=champion_metric,
    )
    assert decided.reason == reason


@pytest.mark.parametrize(
    ("perplexity", "of_champion", "champion", "reason"),
    [
        (12.0, 14.5, True, "no worse: 12.0000 against 14.5000 of champion version 3"),
        (14.5, 12.0, False, "worse: 14.5000 against 12.0000 of champion version 3"),
        (12.0, NAN, False, "worse: 12.0000 against nan of champion version 3"),
    ],
)
def test_of_two_perplexities_the_smaller_is_better(
    perplexity: float, of_champion: float, champion: bool, reason: str
) -> None:
    decided = decide(
        mode="auto",
        refusal=None,
        metric=perplexity,
        champion=3,
        champion_metric=of_champion,
        smaller_is_better=True,
    )
    assert (decided.champion, decided.reason) == (champion, reason)


@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_what_a_release_would_refuse_is_not_recommended(mode: Literal["auto", "manual"]) -> None:
    found = decide(
        mode=mode,
        refusal=None,
        metric=0.4,
        champion=1,
        champion_metric=0.97,
        requirement="its accuracy of 0.4000 is 58.8% below 0.9700 of version 1",
    )
    assert (found.challenger, found.champion) == (False, False)
    assert found.reason.startswith("a release would refuse it: its accuracy of 0.4000")


def test_gates_come_before_what_a_release_requires() -> None:
    found = decide(
        mode="manual",
        refusal="it is too large",
        metric=0.4,
        champion=1,
        champion_metric=0.97,
        requirement="its accuracy",
    )
    assert found.reason == "it did not pass its gates: it is too large"


@pytest.mark.parametrize(
    ("required", "unproved", "words"),
    [
        (True, "it has no serving profile", "run `millrace release --profile`"),
        (True, "", None),
        (False, "it has no serving profile", None),
    ],
)
def test_a_goal_that_is_not_proved_is_refused_where_a_proof_is_required(
    required: bool, unproved: str, words: str | None
) -> None:
    credentials = Credentials(True, 0.9, "accuracy", "ann", {}, unproved=unproved)
    found = refusal(RequireSpec(slo=required), credentials, None)
    assert found is None if words is None else found is not None and words in found
