"""Which replicas get requests, drain and stop."""

from dataclasses import replace

from millrace.serving.replicas.fleet import (
    DRAIN_SECONDS,
    QUIET_SECONDS,
    Slot,
    change_drains,
    fault_of_memory,
    has_drained,
    members_of,
    note_requests,
)

FIRST, SECOND = Slot(1, 11, 11), Slot(2, 12, 12)


def test_a_replica_gets_requests_only_if_this_process_was_found_ready() -> None:
    assert members_of([FIRST, Slot(2, 12), Slot(3, 13, 9), Slot(4)]).serving == [1]
    assert Slot(3, 13, 9).state == "loading"


def test_a_replica_whose_process_ended_is_forgotten() -> None:
    gone = replace(SECOND, pid=None)
    assert members_of([FIRST, gone]).serving == [1]
    assert change_drains([FIRST, gone], 2, 0.0)[1] == Slot(2)


def test_who_is_not_wanted_drains_first_and_stops_when_it_is_quiet() -> None:
    slots = change_drains([FIRST, SECOND], 1, 10.0)
    assert (members_of(slots).serving, members_of(slots).draining) == ([1], [2])
    slots = note_requests(slots, {1: 5, 2: 1}, 10.2)
    assert not has_drained(slots[1], 10.2 + QUIET_SECONDS)
    slots = note_requests(slots, {1: 5}, 11.0)
    assert not has_drained(slots[1], 11.0)
    slots = note_requests(slots, {}, 11.0 + QUIET_SECONDS)
    assert has_drained(slots[1], 11.1 + QUIET_SECONDS)


def test_one_more_request_makes_it_wait_again() -> None:
    slots = note_requests(change_drains([FIRST, SECOND], 1, 0.0), {}, 0.1)
    slots = note_requests(slots, {2: 1}, 0.5)
    assert not has_drained(note_requests(slots, {}, 0.7)[1], 0.7)


def test_a_stream_that_never_ends_is_ended_after_a_while() -> None:
    slots = note_requests(change_drains([FIRST, SECOND], 1, 0.0), {2: 1}, DRAIN_SECONDS)
    assert has_drained(slots[1], DRAIN_SECONDS)


def test_when_nothing_is_known_of_its_requests_it_waits() -> None:
    slots = note_requests(change_drains([FIRST, SECOND], 1, 0.0), None, 50.0)
    assert not has_drained(slots[1], 50.0)


def test_the_last_that_serves_does_not_drain_while_the_other_loads() -> None:
    loading = Slot(1, 11)
    assert change_drains([loading, SECOND], 1, 0.0)[1].is_serving
    assert change_drains([FIRST, SECOND], 1, 0.0)[1].state == "draining"


def test_one_that_only_loads_goes_at_once() -> None:
    slots = change_drains([Slot(1, 11), Slot(2, 12)], 1, 0.0)
    assert slots[1].state == "draining"


def test_who_is_wanted_again_must_be_found_ready_anew() -> None:
    slots = change_drains([FIRST, SECOND], 1, 0.0)
    back = change_drains(slots, 2, 1.0)[1]
    assert (back.state, back.drains_since) == ("loading", None)


def test_who_is_told_to_end_ends() -> None:
    slots = change_drains([FIRST, SECOND], 1, 0.0)
    ending = replace(slots[1], is_stopping=True)
    assert change_drains([FIRST, ending], 2, 1.0)[1].state == "stopping"
    assert not has_drained(ending, 1000.0)


def test_a_replica_that_does_not_fit_says_what_it_needs() -> None:
    assert fault_of_memory(2, 2 * 2**30, 3 * 2**30) == ""
    assert "2.0 GiB" in fault_of_memory(2, 2 * 2**30, 2**30)
