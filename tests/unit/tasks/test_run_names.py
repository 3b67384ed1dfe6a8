from millrace.tasks.run_names import release_name, score_name


def test_a_release_is_named_for_models_and_versions() -> None:
    assert release_name({"digits": 3}) == "release digits 3"
    assert release_name({"b": None, "a": 1}) == "release a 1, b"
    assert release_name({each: 1 for each in "abcde"}) == "release a 1, b 1, c 1 and 2 more"
    assert release_name({}) == "release"


def test_a_batch_job_is_named_for_its_days() -> None:
    assert score_name("a", ["2026-11-22"]) == "score a 2026-11-22"
    assert score_name("a", ["2026-11-20", "2026-11-21", "2026-11-22"]) == (
        "score a 2026-11-20 to 2026-11-22"
    )
