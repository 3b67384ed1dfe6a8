from millrace.models.common.retention_plan import RetentionPlan, plan_retention


def test_the_newest_and_the_needed_stay() -> None:
    plan = plan_retention([6, 0, 2, 3, 5], 2, {0: "version 1 was trained on it", 6: "in use"})
    assert plan.kept == {0: "version 1 was trained on it", 5: "recent", 6: "in use"}
    assert plan.removed == (2, 3)


def test_without_a_number_all_stay() -> None:
    assert plan_retention([0, 1, 2], None, {}).removed == ()


def test_nothing_needs_no_plan() -> None:
    assert plan_retention([], 1, {7: "live"}) == RetentionPlan({}, ())
