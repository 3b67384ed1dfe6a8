import os
import time

import pytest

from bench.idle import Usage, cpu_row, memory_row, parse_cpu, read_usage

STAT = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 9 9 20 0 3 0 1 1 1"


def test_cpu_is_user_and_system_whatever_the_program_is_called() -> None:
    assert parse_cpu(STAT, 100) == 3.0


def test_a_new_process_counts_and_an_ended_one_does_not() -> None:
    before = Usage({1: 10.0, 2: 5.0}, 0)
    assert Usage({1: 11.0, 3: 2.0}, 0).share_since(before, 30.0) == pytest.approx(0.1)


def test_this_process_is_measured() -> None:
    before = read_usage([os.getpid()])
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    after = read_usage([os.getpid(), 2**30])
    assert list(after.cpu) == [os.getpid()]
    assert after.share_since(before, 1.0) >= 0.09
    assert after.pss > 1_000_000


@pytest.mark.parametrize(("share", "pss", "holds"), [(0.04, 1.2e9, True), (0.05, 1.3e9, False)])
def test_the_goals(share: float, pss: float, holds: bool) -> None:
    assert cpu_row(share, 120).holds is memory_row(int(pss)).holds is holds
