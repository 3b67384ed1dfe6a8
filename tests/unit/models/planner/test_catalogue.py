"""The catalogue of devices, and what `--hardware` takes."""

from datetime import date, timedelta

import pytest
import yaml

from millrace.models.common.errors import InputError
from millrace.models.planner.catalogue import (
    OLD_DAYS,
    Machines,
    device_named,
    old_prices,
    parse_machines,
    read_devices,
    shipped_devices,
)

ROW = {
    "label": "Ours",
    "memory": 24e9,
    "memory_bandwidth": "3e11",
    "rates": {"fp32": 30e12, "bf16": "1.2e14"},
    "source": "our own measurements",
    "price": {"dollars_per_hour": 0.5, "date": date(2026, 11, 1), "source": "our invoice"},
}


def write(folder, rows):
    path = folder / "devices.yaml"
    path.write_text(yaml.safe_dump(rows))
    return path


def test_every_shipped_device_has_sources_and_plausible_figures():
    for name, device in shipped_devices().items():
        assert device.source, name
        assert device.price is None or device.price.source, name
        assert 10 < device.rate("bf16") / device.memory_bandwidth < 2000, name
        assert device.rate("fp32") <= device.rate("bf16"), name


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA GB200", 2500e12),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_a_device_is_found_by_the_name_of_its_driver(name, rate):
    found = device_named(name)
    assert (None if found is None else found.rate("bf16")) == rate


def test_a_row_of_ones_own_is_a_device(tmp_path):
    device = read_devices(write(tmp_path, {"ours": ROW}))["ours"]
    assert device.rate("bf16") == 1.2e14
    assert Machines("ours", device, 4).dollars_per_hour == 2.0


def test_a_device_computes_in_a_wider_type_where_it_lacks_one():
    a100 = shipped_devices()["a100"]
    assert a100.rate("fp8") == a100.rates["bf16"]
    assert a100.rate("int4") == a100.rates["bf16"]
    assert a100.rate("int8") == 624e12


def test_a_device_without_a_rate_is_refused(tmp_path):
    rows = {"ours": ROW | {"rates": {"int8": 1e12}}}
    with pytest.raises(InputError, match="Ours has no rate for bf16"):
        read_devices(write(tmp_path, rows))["ours"].rate("bf16")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"memory": 0}, "ours.memory: Input should be greater than 0"),
        ({"memory_bandwith": 3}, "ours.memory_bandwith: Extra inputs are not permitted"),
        ({"rates": {}}, "ours.rates"),
        ({"rates": {"fp32": 0}}, "ours.rates.fp32: Input should be greater than 0"),
        ({"rates": {"fp32": "-1e13"}}, "ours.rates.fp32: Input should be greater than 0"),
        ({"price": {"dollars_per_hour": 0, "date": "2026-01-01", "source": "s"}}, "greater than 0"),
        ({"price": {"dollars_per_hour": 1, "source": "s"}}, "ours.price.date: Field required"),
        ({"source": ""}, "ours.source"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path, changed, message):
    with pytest.raises(InputError, match=message):
        read_devices(write(tmp_path, {"ours": ROW | changed}))


@pytest.mark.parametrize("name", ["h100x8", "8gpu", "a b", "UPPER"])
def test_a_name_that_hardware_cannot_take_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="is not a name for a device"):
        read_devices(write(tmp_path, {name: ROW}))


@pytest.mark.parametrize("text", ["- a", "a: [", "12"])
def test_a_file_that_is_no_catalogue_is_refused(tmp_path, text):
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="devices"):
        read_devices(path)


def test_a_folder_is_no_catalogue(tmp_path):
    with pytest.raises(InputError, match="cannot be read") as error:
        read_devices(tmp_path)
    assert "Is a directory" in error.value.seen


@pytest.mark.parametrize("text", ["", "# no row yet\n"])
def test_an_empty_file_has_no_devices(tmp_path, text):
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    assert read_devices(path) == {}


def test_hardware_is_names_with_counts():
    machines = parse_machines("h100x8, a100,L40Sx2", shipped_devices())
    assert [(each.name, each.count) for each in machines] == [("h100", 8), ("a100", 1), ("l40s", 2)]
    assert [str(each) for each in machines] == ["h100x8", "a100", "l40sx2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10O", "has no device 'h10o'"),
        ("gtx9", "has no device 'gtx9'"),
        ("h100x0", "at least 1"),
        ("h100x-2", "at least 1"),
        ("", "names no device"),
        (" , ", "names no device"),
    ],
)
def test_unknown_hardware_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_machines(text, shipped_devices())


@pytest.mark.parametrize("text", ["h10", "h10x8"])
def test_a_misspelt_device_has_a_hint(text):
    with pytest.raises(InputError) as error:
        parse_machines(text, shipped_devices())
    assert error.value.hint == "did you mean h100?"


def test_an_old_price_is_named_once():
    h100 = shipped_devices()["h100"]
    later = h100.price.date + timedelta(days=OLD_DAYS + 1)
    both = (Machines("h100", h100, 1), Machines("h100", h100, 8))
    assert old_prices(both, later - timedelta(days=1)) == []
    (message,) = old_prices(both, later)
    assert message.startswith("the price of h100 ($2.69 an hour) is 91 days old: RunPod")
