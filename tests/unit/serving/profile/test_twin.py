"""The event model of Triton's batcher agrees with the closed forms of queueing theory."""

import math

import numpy as np
import pytest

from millrace.serving.profile.twin import Arrivals, Batcher, Service, poisson, simulate

MANY = 200_000


def test_one_server_with_exponential_times_is_m_m_1() -> None:
    drawn, rate, speed = np.random.default_rng(0), 60.0, 100.0
    done = simulate(
        poisson(rate, MANY, 1, drawn), Batcher(1), Service(lambda *_: drawn.exponential(1 / speed))
    )
    assert done.latency.mean() == pytest.approx(1 / (speed - rate), rel=0.03)
    p99 = math.log(100) / (speed - rate)
    assert np.quantile(done.latency, 0.99) == pytest.approx(p99, rel=0.05)
    assert done.utilisation == pytest.approx(0.6, rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_one_server_with_a_constant_time_is_m_d_1(load: float) -> None:
    speed = 100.0
    done = simulate(
        poisson(load * speed, MANY, 1, np.random.default_rng(1)),
        Batcher(1),
        Service(lambda *_: 1 / speed),
    )
    assert done.queue.mean() == pytest.approx(load / (2 * speed * (1 - load)), rel=0.06)


def test_several_instances_with_exponential_times_are_m_m_c() -> None:
    drawn, rate, speed, servers = np.random.default_rng(2), 240.0, 100.0, 3
    done = simulate(
        poisson(rate, MANY, 1, drawn),
        Batcher(1, instances=servers),
        Service(lambda *_: drawn.exponential(1 / speed)),
    )
    offered = rate / speed
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - offered / servers)
    waits = last / (sum(terms) + last)  # Erlang's C
    assert done.queue.mean() == pytest.approx(waits / (servers * speed - rate), rel=0.06)
    assert (done.queue > 0).mean() == pytest.approx(waits, rel=0.03)


def test_several_instances_with_a_constant_time_are_m_d_c() -> None:
    rate, seconds, servers = 240.0, 0.01, 3
    done = simulate(
        poisson(rate, MANY, 1, np.random.default_rng(5)),
        Batcher(1, instances=servers),
        Service(lambda *_: seconds),
    )
    assert done.queue.mean() == pytest.approx(wait_of_m_d_c(rate, seconds, servers), rel=0.06)


def wait_of_m_d_c(rate: float, seconds: float, servers: int, most: int = 200) -> float:
    """Return the mean wait in M/D/c, seconds.

    What is in service now has gone after one service time, so what is there then is what waits now
    and what arrived since: a Markov chain (Crommelin 1932). The wait follows by Little's law.
    """
    came = [math.exp(-rate * seconds)]
    for count in range(1, 2 * most):
        came.append(came[-1] * rate * seconds / count)
    step = np.zeros((most, most))
    for now in range(most):
        left = max(0, now - servers)
        step[now, left:] = came[: most - left]
    there = np.full(most, 1 / most)
    for _ in range(2000):
        there = there @ step
    there /= there.sum()
    waiting = np.maximum(0, np.arange(most) - servers)
    return float(there @ waiting) / rate


@pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
def test_batches_of_what_waits_are_m_m_1_with_bulk_service(load: float) -> None:
    """The queue of M/M(1, b)/1 is geometric (Medhi 2003, Stochastic Models in Queueing Theory)."""
    largest, speed = 8, 50.0
    rate, drawn = load * largest * speed, np.random.default_rng(6)
    done = simulate(
        poisson(rate, MANY, 1, drawn),
        Batcher(largest),
        Service(lambda *_: drawn.exponential(1 / speed)),
    )
    roots = np.roots([speed, *[0.0] * (largest - 1), -(rate + speed), rate])
    real = roots[np.isclose(roots.imag, 0)].real
    ratio = float(real[(real > 0) & (real < 1 - 1e-9)][0])
    is_busy = 1 / (1 + (1 - ratio) * speed / rate)
    wait = is_busy * ratio / (1 - ratio) / rate
    assert done.queue.mean() == pytest.approx(wait, rel=0.06)
    assert (done.queue > 0).mean() == pytest.approx(is_busy, rel=0.03)


@pytest.mark.parametrize(("first", "further"), [(1.0, 1.5), (1.0, 0.5)])
def test_batches_that_waited_take_another_time_as_in_a_closed_form(
    first: float, further: float
) -> None:
    """Welch, On a generalized M/G/1 queuing process, Operations Research 12 (1964)."""
    rate, drawn = 0.5, np.random.default_rng(5)
    done = simulate(
        poisson(rate, 4 * MANY, 1, drawn),
        Batcher(1),
        Service(lambda _, __, waited: drawn.exponential(further if waited else first)),
    )
    squares = 2 * first**2, 2 * further**2
    wait = rate * squares[1] / (2 * (1 - rate * further)) + rate * (squares[0] - squares[1]) / (
        2 * (1 - rate * further + rate * first)
    )
    assert done.queue.mean() == pytest.approx(wait, rel=0.05)
    waits = rate * first / (1 - rate * further + rate * first)
    assert (done.queue > 0).mean() == pytest.approx(waits, rel=0.02)


@pytest.mark.parametrize(("delay", "waited"), [(0.0, [False, True]), (0.3, [False, False])])
def test_a_batch_that_waited_for_its_delay_did_not_wait_for_an_instance(
    delay: float, waited: list[bool]
) -> None:
    seen = list[bool]()

    def service(_: int, __: int, has_waited: bool) -> float:
        seen.append(has_waited)
        return 0.1

    arrivals = Arrivals(np.array([0.0, 0.05]) * (1 + 9 * bool(delay)), np.ones(2, np.int64))
    simulate(arrivals, Batcher(4, queue_delay=delay), Service(service))
    assert seen == waited


@pytest.mark.parametrize(("rate", "opening"), [(20.0, 0.01), (100.0, 0.01), (100.0, 0.03)])
def test_requests_join_a_batch_that_could_start_while_it_is_open(
    rate: float, opening: float
) -> None:
    """Batches that are open all the time are the counts of a counter with a dead time.

    Source: Feller 1948, On probability problems in the theory of counters.
    """
    done = simulate(
        poisson(rate, MANY, 1, np.random.default_rng(7)),
        Batcher(1000),
        Service(lambda *_: opening, lambda: opening),
    )
    assert MANY / done.batches == pytest.approx(1 + rate * opening, rel=0.02)
    assert done.queue.max() == 0


def test_what_comes_after_a_batch_was_closed_or_full_waits_for_the_next() -> None:
    arrivals = Arrivals(np.array([0.0, 0.01, 0.02, 0.05]), np.ones(4, np.int64))
    done = simulate(arrivals, Batcher(2), Service(lambda *_: 1.0, lambda: 0.03))
    assert done.started.tolist() == [0.0, 0.01, 1.0, 1.0]
    assert done.ended.tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_full_batch_does_not_wait_and_one_that_is_not_full_waits_for_the_delay() -> None:
    times = np.array([0.0, 0.001, 0.002, 1.0])
    done = simulate(
        Arrivals(times, np.ones(4, np.int64)),
        Batcher(3, queue_delay=0.01),
        Service(lambda *_: 0.1),
    )
    assert done.started.tolist() == [0.002, 0.002, 0.002, 1.01]
    assert done.batches == 2


def test_the_largest_preferred_size_that_is_filled_is_taken() -> None:
    done = simulate(
        Arrivals(np.zeros(7), np.ones(7, np.int64)),
        Batcher(8, queue_delay=1.0, preferred=(2, 4)),
        Service(lambda *_: 0.1),
    )
    assert done.started.round(6).tolist() == [0, 0, 0, 0, 0.1, 0.1, 1.0]


def test_requests_stay_whole() -> None:
    done = simulate(
        Arrivals(np.zeros(3), np.array([3, 3, 2])),
        Batcher(4),
        Service(lambda rows, *_: float(rows)),
    )
    assert done.started.tolist() == [0, 3, 6]


def test_a_higher_priority_comes_first() -> None:
    done = simulate(
        Arrivals(np.zeros(4), np.ones(4, np.int64), np.array([2, 2, 1, 2])),
        Batcher(1),
        Service(lambda *_: 1.0),
    )
    assert done.started.tolist() == [1, 2, 0, 3]


def test_what_has_waited_too_long_is_refused() -> None:
    done = simulate(
        Arrivals(np.zeros(3), np.ones(3, np.int64)),
        Batcher(1, timeout=1.5),
        Service(lambda *_: 1.0),
    )
    assert done.started.tolist() == [0, 1, math.inf]


def test_a_batch_never_starts_before_its_requests() -> None:
    drawn = np.random.default_rng(3)
    arrivals = poisson(500, 20_000, 2, drawn)
    done = simulate(
        arrivals,
        Batcher(16, instances=2, queue_delay=0.003),
        Service(lambda rows, *_: 0.004 * rows**0.5),
    )
    assert (done.queue >= 0).all()
    assert done.queue.max() >= 0.003


@pytest.mark.parametrize(("load", "is_over"), [(0.5, False), (0.9, False), (1.1, True)])
def test_overload_is_told(load: float, is_over: bool) -> None:
    done = simulate(
        poisson(load * 100, 20_000, 1, np.random.default_rng(4)),
        Batcher(1),
        Service(lambda *_: 0.01),
    )
    assert done.is_overload is is_over
