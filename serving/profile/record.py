"""`serving_profile.json`: the serving configuration of a version, and the proof of its goal."""

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from millrace.models.common.counted import short
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec

FILE = "serving_profile.json"
KEYS = (
    *("max_batch_size", "preferred_batch_size", "max_queue_delay_microseconds"),
    *("instance_count", "intra_op_thread_count"),
    *("generation.max_num_seqs", "generation.stream_interval"),
)
"""The keys of `serving` that a profile may set."""


MEMORY = "memory_mb"
"""The figure with the memory of the processes that compute, in megabytes."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Configuration(_Record):
    """The settings of `serving` that a profile chooses.

    Attributes:
        settings: values by key of the pipeline file's `serving`; `generation.KEY` for a key of
            `serving.generation`.
    """

    settings: Mapping[str, int]

    def apply(self, serving: ServingSpec) -> ServingSpec:
        """Return the serving settings with those of the profile.

        Raises:
            ValueError: a profile may not set a key, or not to this value.
        """
        values = serving.model_dump()
        for key, value in self.settings.items():
            if key not in KEYS:
                raise ValueError(f"a serving profile does not set serving.{key}")
            part, _, name = key.rpartition(".")
            place = values[part] if part else values
            place[name] = value
        return ServingSpec.model_validate(values)

    def __str__(self) -> str:
        """Return the settings as `key value, key value`."""
        return ", ".join(f"{key} {value}" for key, value in self.settings.items())


class Proof(_Record):
    """One bound of the goal, and what a run of real requests said about it.

    Attributes:
        bound: key of the bound in `serving.slo`.
        bound_ms: its value, in milliseconds.
        requests: number of requests that were sent.
        over: how many of them took longer.
        allowed: how many could have, for the proof to hold.
        correlation: how many successive requests count as one independent request.
        p50_ms: median, in milliseconds.
        p99_ms: 99th percentile, in milliseconds; None if so many had no answer.
    """

    bound: str
    bound_ms: float = Field(gt=0)
    requests: int = Field(ge=0)
    over: int = Field(ge=0)
    allowed: int
    correlation: float = Field(ge=1)
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the bound is proved."""
        return self.over <= self.allowed

    @property
    def is_within(self) -> bool:
        """Whether the p99 that was seen is within the bound, which alone is no proof."""
        return self.p99_ms is not None and self.p99_ms <= self.bound_ms

    def __str__(self) -> str:
        """Return what was measured beside the bound, as `p99 3.2 ms of 10 ms`."""
        seen = "no answer" if self.p99_ms is None else f"{short(self.p99_ms)} ms"
        name = self.bound.removesuffix("_ms").replace("_", " ")
        text = f"{name} {seen} of {self.bound_ms:g} ms"
        if self.holds or not self.is_within:
            return text
        if self.allowed < 0:
            return f"{text}, but slow ones came together: {self.requests:,} requests are too few"
        over = f"{self.over:,} of {self.requests:,} requests took longer"
        return f"{text}, but {over}, and for a proof at most {self.allowed:,} may"


class Client(_Record):
    """What the load generator itself needed, in the run of the proof.

    Attributes:
        core_share: share of one core.
        lateness_p99_ms: 99th percentile of how late a request was sent, in milliseconds.
    """

    core_share: float = Field(ge=0)
    lateness_p99_ms: float = Field(ge=0)


class ServingProfile(_Record):
    """The profile of one version on one kind of machine.

    Attributes:
        model: the registered model.
        version: its version.
        digest: digest of the version's files.
        variant: its exported variant.
        goal: the goal, as it was stated.
        configuration: the settings that are served.
        rate: requests per second at which the goal was proved.
        capacity: most requests per second at which the goal is expected to be met.
        confidence: of the proofs.
        proofs: one for each bound of the goal.
        figures: further figures by name: of the proof in milliseconds, tokens or megabytes, and
            what a scaler of replicas should aim at.
        client: what the load generator needed.
        service_times: SHA-256 of the file with the times of the configuration's batches; empty if
            there is none.
        machine: description of the machine.
        machine_kind: its kind; see `Machine.kind`.
        cores: its cores.
        engine: names and versions of the server and of what computes.
        created: when the profile was made, ISO 8601 in UTC.
    """

    model: str
    version: int = Field(ge=1)
    digest: str
    variant: str
    goal: SloSpec
    configuration: Configuration
    rate: float = Field(gt=0)
    capacity: float = Field(ge=0)
    confidence: float = Field(gt=0, lt=1)
    proofs: tuple[Proof, ...] = Field(min_length=1)
    figures: Mapping[str, float] = {}
    client: Client
    service_times: str = ""
    machine: str
    machine_kind: str
    cores: int = Field(ge=1)
    engine: str
    created: str

    @property
    def is_proved(self) -> bool:
        """Whether every bound of the goal is proved."""
        named = {each.bound: each for each in self.proofs}
        return all(
            key in named and named[key].bound_ms <= bound and named[key].holds
            for key, bound in bounds_of(self.goal).items()
        )

    def to_json(self) -> str:
        """Return the text of `serving_profile.json`."""
        return self.model_dump_json(indent=1)

    @property
    def sha256(self) -> str:
        """The digest of `to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def summary(self) -> str:
        """Return the proofs in a sentence, for the version's tags."""
        failed = "not proved" if all(each.is_within for each in self.proofs) else "not met"
        word = "met" if self.is_proved else failed
        return f"{word} at {short(self.rate)} requests/s: {'; '.join(map(str, self.proofs))}"


def parse_profile(text: str) -> ServingProfile:
    """Return a profile from the text of its file.

    Raises:
        ValueError: the text is not one.
    """
    try:
        return ServingProfile.model_validate_json(text)
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{FILE}: {place}: {first['msg']}") from error


def bounds_of(goal: SloSpec) -> dict[str, float]:
    """Return the bounds of a goal in milliseconds, by key."""
    found = {key: getattr(goal, key) for key in ("p99_ms", "ttft_p99_ms", "tpot_p99_ms")}
    return {key: bound for key, bound in found.items() if bound is not None}


def find_fault(
    profile: ServingProfile | None,
    *,
    digest: str,
    goal: SloSpec | None,
    machine_kind: str,
    cores: int,
    engine: str,
) -> str | None:
    """Return why a profile does not prove a version's goal here; None if it does.

    Args:
        profile: the version's profile; None if it has none.
        digest: digest of the version's files.
        goal: the goal of the version's pipeline file.
        machine_kind: kind of the machine that is to serve it.
        cores: its cores, which decide over instances and threads as much as its kind.
        engine: its server and what computes there.
    """
    if goal is None:
        return "its pipeline file has no serving.slo"
    if profile is None:
        return "it has no serving profile"
    if profile.digest != digest:
        return "its serving profile was made with other files"
    if profile.machine_kind != machine_kind or profile.cores != cores:
        return (
            f"its serving profile was made on another kind of machine: {profile.machine_kind}, "
            f"{profile.cores} cores; this one is {machine_kind}, {cores} cores"
        )
    if profile.engine != engine:
        return f"its serving profile was made with {profile.engine}, and this machine has {engine}"
    if (easier := easier_in(profile.goal, goal, profile.rate)) is not None:
        return f"its serving profile was made for another goal: {easier}"
    if not profile.is_proved:
        return f"its serving profile says that the goal is {profile.summary()}"
    return None


def easier_in(made: SloSpec, wanted: SloSpec, rate: float) -> str | None:
    """Return in what a goal is easier to meet than the wanted one; None if in nothing.

    Args:
        made: the goal.
        wanted: the other one.
        rate: requests per second at which `made` was proved.
    """
    if rate < wanted.rate:
        return f"{rate:g} requests/s, of {wanted.rate:g}"
    had = bounds_of(made)
    for key, bound in bounds_of(wanted).items():
        if had.get(key, float("inf")) > bound:
            return f"{key} {had[key]:g}, not {bound:g}" if key in had else f"no {key}"
    for key in ("prompt_tokens", "answer_tokens") if wanted.is_streamed else ("rows",):
        if shares(getattr(made, key)) != shares(getattr(wanted, key)):
            return f"other {key}"
    return None


def shares(sizes: Mapping[int, float]) -> dict[int, float]:
    """Return a distribution of sizes as shares of all requests."""
    total = sum(sizes.values())
    return {size: round(often / total, 6) for size, often in sorted(sizes.items())}
