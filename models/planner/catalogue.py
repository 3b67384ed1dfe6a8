"""The catalogue of devices: what each has, from which source, and at what price of which date."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from millrace.models.common.bounded_files import bounded_yaml
from millrace.models.common.errors import InputError
from millrace.models.config import Spec

CATALOGUE = Path(__file__).with_name("hardware.yaml")
THIS_MACHINE = "this-machine"
OLD_DAYS = 90
"""Age of a price, in days, from which it is called old."""

COMPUTED_IN: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "bf16", "fp16", "fp32"),
    "int4": ("bf16", "fp16", "fp32"),
}
"""The rates that count for a data type, best first: a device without it computes in a wider one.
Weights in int4 are multiplied in 16 bits, and so are those in fp4 on a device without it."""


class Price(Spec):
    """What a device costs."""

    dollars_per_hour: float = Field(gt=0, description="Price of one device for an hour.")
    date: date
    source: str = Field(min_length=1, description="Where the price was found.")


class Device(Spec):
    """A device, as a row of the catalogue describes it."""

    label: str = Field(min_length=1)
    chip: str = Field("", description="Words by which its driver's name for it is known.")
    memory: float = Field(gt=0, description="Bytes of its memory.")
    memory_bandwidth: float = Field(gt=0, description="Bytes per second of its memory.")
    rates: Mapping[str, Annotated[float, Field(gt=0)]] = Field(
        min_length=1, description="Dense operations per second by data type."
    )
    link_bandwidth: float | None = Field(
        None, gt=0, description="Bytes per second to another device of its node, in one direction."
    )
    network_bandwidth: float | None = Field(
        None, gt=0, description="Bytes per second to another node, for each device, one direction."
    )
    devices_per_node: int = Field(1, ge=1)
    watts: float | None = Field(None, gt=0, description="Thermal design power (TDP).")
    cores: int | None = Field(
        None,
        ge=1,
        description="Cores of a CPU, which workers share; null: a GPU, of which each "
        "worker has its own.",
    )
    kernel_seconds: float = Field(
        5e-6, gt=0, description="Seconds that the start of one operation takes."
    )
    python_seconds: float = Field(
        2.5e-8, gt=0, description="Seconds that Python takes for one turn of a loop that adds."
    )
    cache: float = Field(
        0.0, ge=0, description="Bytes of its largest cache, which weights may stay in."
    )
    source: str = Field(min_length=1, description="Where the figures are from.")
    disturbed: bool = Field(False, description="Whether other programs ran while it was measured.")
    price: Price | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return self.model_dump(mode="json")

    @property
    def is_cpu(self) -> bool:
        """Whether workers share it."""
        return self.cores is not None

    def rate(self, data_type: str) -> float:
        """Return the operations per second of a data type, or of the first of `COMPUTED_IN`.

        Raises:
            InputError: the device has no such rate.
        """
        usable = COMPUTED_IN.get(data_type, ())
        found = next((self.rates[name] for name in usable if name in self.rates), None)
        if found is None:
            raise InputError(
                f"{self.label} has no rate for {data_type}",
                seen=data_type,
                valid=", ".join(self.rates),
            )
        return found


@dataclass(frozen=True)
class Machines:
    """Some devices of one kind.

    Attributes:
        name: name of the device in the catalogue.
        device: the device.
        count: number of devices.
    """

    name: str
    device: Device
    count: int = 1

    def __str__(self) -> str:
        """Return the name as `--hardware` takes it."""
        return self.name if self.count == 1 else f"{self.name}x{self.count}"

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of all devices for an hour; None if it is not known."""
        price = self.device.price
        return None if price is None else price.dollars_per_hour * self.count

    @property
    def watts(self) -> float | None:
        """TDP of all devices; None if it is not known."""
        return None if self.device.watts is None else self.device.watts * self.count


@cache
def shipped_devices() -> Mapping[str, Device]:
    """Return the devices of the catalogue in the package."""
    return read_devices(CATALOGUE)


def device_named(name: str) -> Device | None:
    """Return the first device of the package whose chip a driver's name names; None if none is.

    Args:
        name: a name such as `NVIDIA H100 80GB HBM3`.
    """
    return next((device for device in shipped_devices().values() if _names(device, name)), None)


def _names(device: Device, name: str) -> bool:
    words = r"[ -]".join(re.escape(word) for word in device.chip.split())
    whole = rf"(?<![A-Za-z0-9]){words}(?![A-Za-z0-9])"
    return bool(device.chip) and re.search(whole, name, re.IGNORECASE) is not None


def read_devices(path: Path) -> dict[str, Device]:
    """Return the devices of a catalogue file; an empty file has none.

    Raises:
        InputError: the file cannot be read, or a row is not a device.
    """
    try:
        rows = bounded_yaml(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(
            f"the catalogue of devices cannot be read: {path}", seen=str(error)
        ) from error
    if rows is None:
        return {}
    if not isinstance(rows, dict):
        raise InputError(
            f"{path} is not a catalogue of devices",
            seen=type(rows).__name__,
            valid="a mapping from names to devices",
        )
    return {str(name): _device(str(name), row, path) for name, row in rows.items()}


def _device(name: str, row: Any, path: Path) -> Device:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or re.search(r"x[0-9]+$", name):
        raise InputError(
            f"{path}: {name!r} is not a name for a device",
            seen=name,
            valid="a small letter, then small letters, digits and -, without x and a count",
        )
    try:
        return Device.model_validate(_with_numbers(row))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise InputError(
            f"{path}: {name}.{key}: {first['msg']}".replace(".: ", ": "),
            seen=repr(first["input"])[:80],
            hint="docs/planner.md shows a row",
        ) from error


def _with_numbers(value: Any) -> Any:
    """Return a row whose texts like `2.039e12`, which YAML 1.1 reads as texts, are numbers."""
    if isinstance(value, dict):
        return {key: _with_numbers(each) for key, each in value.items()}
    if isinstance(value, str) and re.fullmatch(r"[0-9][0-9_]*(\.[0-9]*)?e[+-]?[0-9]+", value):
        return float(value)
    return value


def parse_machines(text: str, devices: Mapping[str, Device]) -> tuple[Machines, ...]:
    """Return the devices that a text like `h100x8,a100x8,this-machine` names.

    Raises:
        InputError: a name is unknown, or a count is not 1 or more.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InputError("--hardware names no device", seen=repr(text), valid=_listed(devices))
    return tuple(_machines(word, devices) for word in words)


def _machines(word: str, devices: Mapping[str, Device]) -> Machines:
    name, count = word.lower(), 1
    found = re.fullmatch(r"(.+)x(-?[0-9]+)", name)
    if found and name not in devices and found[1] in devices:
        name, count = found[1], int(found[2])
    if name not in devices:
        close = get_close_matches(name, devices, 1)
        raise InputError(
            f"the catalogue has no device {name!r}",
            seen=word,
            valid=_listed(devices),
            hint=f"did you mean {close[0]}?" if close else "docs/planner.md says how to add one",
        )
    if count < 1:
        raise InputError("the number of devices must be at least 1", seen=word, valid=f"{name}x1")
    return Machines(name, devices[name], count)


def _listed(devices: Mapping[str, Device]) -> str:
    return ", ".join(devices)


def old_prices(machines: Sequence[Machines], today: date) -> list[str]:
    """Return a message for each price that is old."""
    messages = []
    for each in machines:
        price = each.device.price
        if price is not None and (age := (today - price.date).days) > OLD_DAYS:
            messages.append(
                f"the price of {each.name} (${price.dollars_per_hour:g} an hour) is {age} days old:"
                f" {price.source}, {price.date}"
            )
    return list(dict.fromkeys(messages))
