"""Published times of served decoders on GPUs, and the weights that are fitted on them.

The rows are of AISimulate's open data (`published/README.md`). What is held out is decided by names
alone: each model in turn, and each device in turn. The fit sees neither the rows nor, for the
interval, any other row of that name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from millrace.models.planner.catalogue import Device, shipped_devices
from millrace.models.planner.fit import Fit, fit_terms
from millrace.models.planner.published_decoders import DECODERS
from millrace.models.planner.published_training import read_rows
from millrace.models.planner.serving_time import (
    EXPERT_TERMS,
    FIRST_TOKEN_TERMS,
    TERMS,
    ServingLoad,
    first_token_terms,
    token_terms,
)


@dataclass(frozen=True)
class MeasuredLoad:
    """A load and its published times.

    Attributes:
        model: name of the model, a key of `DECODERS`.
        device: name of the device in the catalogue.
        engine: `trtllm`, `vllm` or `sglang`.
        load: the load.
        tpot: mean seconds between two tokens of a stream.
        ttft: mean seconds until the first token.
    """

    model: str
    device: str
    engine: str
    load: ServingLoad
    tpot: float
    ttft: float


HELD_OUT: dict[str, Callable[[MeasuredLoad], str]] = {
    "model": lambda row: row.model,
    "device": lambda row: row.device,
}
"""By what a part of the rows is held out."""


def dense_loads() -> list[MeasuredLoad]:
    """Return the measured loads of decoders without experts."""
    return _read_loads("serving_dense.csv")


def expert_loads() -> list[MeasuredLoad]:
    """Return the measured loads of decoders with experts."""
    return _read_loads("serving_experts.csv")


def _read_loads(name: str) -> list[MeasuredLoad]:
    return [
        MeasuredLoad(
            row["model"],
            row["device"],
            row["engine"],
            ServingLoad(
                DECODERS[row["model"]],
                row["weights"],
                int(row["streams"]),
                int(row["prompt_tokens"]),
                int(row["output_tokens"]),
                int(row["tensor_parallel"]),
            ),
            tpot=float(row["tpot_ms"]) / 1000,
            ttft=float(row["ttft_ms"]) / 1000,
        )
        for row in read_rows(name)
    ]


@dataclass(frozen=True)
class ServedTime:
    """A time of served decoders, and the published rows that it is fitted on.

    Attributes:
        names: names of its terms.
        terms: the terms of a load on a device.
        measure: the published time of a row, in seconds.
        rows: the rows that it is fitted on.
        is_estimated: whether a row is like those that the fit is for. Their errors give the
            interval, and they span the region.
    """

    names: tuple[str, ...]
    terms: Callable[[ServingLoad, Device], dict[str, float]]
    measure: Callable[[MeasuredLoad], float]
    rows: Callable[[], list[MeasuredLoad]]
    is_estimated: Callable[[MeasuredLoad], bool] = lambda row: True

    def terms_of(self, row: MeasuredLoad) -> dict[str, float]:
        """Return the terms of a row."""
        return self.terms(row.load, shipped_devices()[row.device])


SERVED_TIMES: dict[str, ServedTime] = {
    "token_time": ServedTime(TERMS, token_terms, lambda row: row.tpot, dense_loads),
    "expert_token_time": ServedTime(
        EXPERT_TERMS,
        token_terms,
        lambda row: row.tpot,
        lambda: dense_loads() + expert_loads(),
        lambda row: row.load.decoder.experts is not None,
    ),
    "first_token_time": ServedTime(
        FIRST_TOKEN_TERMS,
        first_token_terms,
        lambda row: row.ttft,
        lambda: [row for row in dense_loads() + expert_loads() if row.engine == "vllm"],
    ),
}
"""What is fitted, by its name in `fits.yaml`: the time between two tokens of decoders without
experts and with them, and the time to the first token with vLLM, which Millrace uses on GPUs."""


def fit_served_time(
    time: ServedTime, measured: Sequence[MeasuredLoad], belongs_to: Callable[[MeasuredLoad], str]
) -> Fit:
    """Return the weights of the terms, fitted on measured loads.

    Args:
        time: the time.
        measured: the loads.
        belongs_to: what is held out together for the interval.
    """
    estimated = [number for number, row in enumerate(measured) if time.is_estimated(row)]
    return fit_terms(
        [time.terms_of(row) for row in measured],
        [time.measure(row) for row in measured],
        time.names,
        groups=[belongs_to(row) for row in measured],
        described=[measured[number].load.described for number in estimated],
        robust=True,
        estimated=set(estimated),
    )


@dataclass(frozen=True)
class HeldOut:
    """A measured load, estimated by a fit without the part that it belongs to.

    Attributes:
        row: the load.
        error: estimated ÷ measured − 1.
        held: whether the interval holds the measurement.
    """

    row: MeasuredLoad
    error: float
    held: bool


@cache
def estimate_held_out(name: str, by: str) -> list[HeldOut]:
    """Estimate each row that a fit is for by a fit on the others.

    Args:
        name: a key of `SERVED_TIMES`.
        by: a key of `HELD_OUT`.
    """
    time, belongs_to = SERVED_TIMES[name], HELD_OUT[by]
    rows, found = time.rows(), []
    for part in dict.fromkeys(belongs_to(row) for row in rows if time.is_estimated(row)):
        fit = fit_served_time(time, [row for row in rows if belongs_to(row) != part], belongs_to)
        for row in rows:
            if belongs_to(row) == part and time.is_estimated(row):
                estimate = fit.estimate(time.terms_of(row))
                measured = time.measure(row)
                held = estimate.holds(measured)
                found.append(HeldOut(row, estimate.value / measured - 1, held))
    return found
