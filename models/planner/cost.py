"""What a million tokens or rows cost, by reservation and by usage, and the energy they take."""

from dataclasses import dataclass

from millrace.models.common.errors import InputError

MILLION = 1e6
SECONDS_OF_AN_HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """What a million units cost.

    Attributes:
        reservation: if the devices are paid for the whole time, at the load that they get.
        usage: if only the time in which they work is paid.
    """

    reservation: float
    usage: float


def cost_per_million(
    price_per_hour: float, capacity_per_second: float, load_per_second: float
) -> Cost:
    """Return what a million tokens or rows cost.

    Args:
        price_per_hour: price of all devices for an hour.
        capacity_per_second: units that they can do in a second.
        load_per_second: units that are asked for, on average; at most the capacity counts.

    Raises:
        InputError: a price or a rate is not above 0.
    """
    values = {"price": price_per_hour, "capacity": capacity_per_second, "load": load_per_second}
    for name, value in values.items():
        if not value > 0:
            raise InputError(f"the {name} must be above 0", seen=str(value), valid="above 0")
    done = min(capacity_per_second, load_per_second)
    per_second = price_per_hour / SECONDS_OF_AN_HOUR
    return Cost(
        reservation=per_second / done * MILLION,
        usage=per_second / capacity_per_second * MILLION,
    )


def energy_per_million(watts: float, capacity_per_second: float) -> float:
    """Return the kWh of a million units, if the devices draw `watts` (their TDP) at work."""
    return watts / capacity_per_second * MILLION / 1000 / SECONDS_OF_AN_HOUR
