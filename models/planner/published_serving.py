"""Published times of served decoders on GPUs, and the weights that are fitted on them.

The rows are of AISimulate's open data (`published/README.md`). What is held out is decided by names
alone: each model in turn, and each device in turn. The fit sees neither the rows nor, for the
interval, any other row of that name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.fit import Fit, fit_terms
from millrace.models.planner.published_decoders import DECODERS
from millrace.models.planner.published_training import read_rows
from millrace.models.planner.serving_time import TERMS, ServingLoad, token_terms


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

    @property
    def terms(self) -> dict[str, float]:
        """The terms of its time between two tokens."""
        return token_terms(self.load, shipped_devices()[self.device])


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


def fit_token_time(
    measured: Sequence[MeasuredLoad], belongs_to: Callable[[MeasuredLoad], str]
) -> Fit:
    """Return the weights of the terms, fitted on measured loads.

    Args:
        measured: the loads.
        belongs_to: what is held out together for the interval.
    """
    return fit_terms(
        [each.terms for each in measured],
        [each.tpot for each in measured],
        TERMS,
        groups=[belongs_to(each) for each in measured],
        described=[each.load.described for each in measured],
        robust=True,
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


def estimate_held_out(measured: Sequence[MeasuredLoad], by: str) -> list[HeldOut]:
    """Estimate each load by a fit on the others.

    Args:
        measured: the loads.
        by: a key of `HELD_OUT`.
    """
    belongs_to = HELD_OUT[by]
    found = []
    for name in dict.fromkeys(map(belongs_to, measured)):
        fit = fit_token_time([row for row in measured if belongs_to(row) != name], belongs_to)
        for row in measured:
            if belongs_to(row) == name:
                estimate = fit.estimate(row.terms)
                error = estimate.value / row.tpot - 1
                found.append(HeldOut(row, error, estimate.holds(row.tpot)))
    return found
