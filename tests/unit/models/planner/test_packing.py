"""Packing of several models onto the fewest devices."""

import pytest

from millrace.models.common.errors import InputError
from millrace.models.planner.packing import Demand, pack_devices, replicas_of


def names(devices):
    return [sorted(each.name for each in device.demands) for device in devices]


def test_three_small_services_share_a_device():
    online = [Demand(name, 20.0, 0.2) for name in "abc"]
    assert names(pack_devices(online, [], 80.0)) == [["a", "b", "c"]]


def test_memory_decides_how_many_devices_there_are():
    online = [Demand("a", 50.0), Demand("b", 50.0), Demand("c", 30.0), Demand("d", 30.0)]
    assert names(pack_devices(online, [], 80.0)) == [["a", "c"], ["b", "d"]]


def test_load_decides_too():
    online = [Demand("a", 1.0, 0.6), Demand("b", 1.0, 0.6), Demand("c", 1.0, 0.4)]
    assert names(pack_devices(online, [], 80.0)) == [["a", "c"], ["b"]]


def test_nightly_jobs_go_where_services_leave_room():
    online = [Demand("a", 60.0, 0.9), Demand("b", 60.0, 0.1)]
    devices = pack_devices(online, [Demand("night", 10.0, 0.5)], 80.0)
    assert names(devices) == [["a"], ["b", "night"]]


def test_a_nightly_job_without_room_gets_a_device():
    devices = pack_devices([Demand("a", 60.0, 0.9)], [Demand("night", 30.0, 0.5)], 80.0)
    assert names(devices) == [["a"], ["night"]]


def test_no_device_holds_more_than_it_has():
    online = [Demand(str(n), 7.0 + n % 5, 0.1 + 0.01 * n) for n in range(25)]
    devices = pack_devices(online, [Demand(f"n{n}", 5.0, 0.3) for n in range(9)], 30.0)
    assert sum(len(each.demands) for each in devices) == 34
    assert all(each.used_memory <= 30 and each.used_load <= 1 + 1e-9 for each in devices)


@pytest.mark.parametrize("demand", [Demand("big", 90.0), Demand("busy", 1.0, 1.2)])
def test_a_job_that_fits_no_device_is_refused(demand):
    with pytest.raises(InputError, match=f"{demand.name} does not fit one device"):
        pack_devices([demand], [], 80.0)


def test_a_load_of_several_devices_is_shared_by_replicas():
    replicas = replicas_of(Demand("a", 30.0, 2.4))
    assert [each.name for each in replicas] == ["a 1 of 3", "a 2 of 3", "a 3 of 3"]
    assert all((each.memory, each.load) == (30.0, pytest.approx(0.8)) for each in replicas)
    assert len(pack_devices(replicas, [], 80.0)) == 3


@pytest.mark.parametrize("load", [1e4, 1e300])
def test_a_load_of_too_many_devices_is_refused_at_once(load):
    with pytest.raises(InputError, match="a needs"):
        replicas_of(Demand("a", 30.0, load))


@pytest.mark.parametrize("load", [0.0, 0.3, 1.0])
def test_a_load_of_one_device_needs_no_replica(load):
    demand = Demand("a", 30.0, load)
    assert replicas_of(demand) == [demand]
