from flows.supervise import failures_in_a_row, restart_delay


def test_a_restart_waits_longer_each_time_up_to_a_limit() -> None:
    assert [restart_delay(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert restart_delay(50) == 30.0


def test_a_steady_run_forgives_earlier_failures() -> None:
    assert failures_in_a_row(5, ran_seconds=61) == 1
    assert failures_in_a_row(5, ran_seconds=3) == 6
