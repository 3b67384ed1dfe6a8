"""The parts `batch` and `schedule`: how rows are scored, and when flows run."""

from datetime import UTC, datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from millrace.models.common.language_generation import MAX_TOKENS
from millrace.models.config import Spec
from millrace.models.config.dataset_spec import Names


def _check_time(text: str) -> str:
    try:
        datetime.strptime(text, "%H:%M")  # noqa: DTZ007
    except ValueError as error:
        raise ValueError("is not a time of day like '06:00'") from error
    return text


class SamplingSpec(Spec):
    """How a language model's tokens are chosen in a batch job; the keys are vLLM's."""

    max_tokens: int = Field(MAX_TOKENS, ge=1, description="Most tokens of an answer.")
    temperature: float = Field(
        0.0, ge=0, le=100, description="0 always takes the most likely token; nothing is random."
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the most likely tokens whose probabilities sum up to this.",
    )
    top_k: int | None = Field(
        None, ge=1, description="Sample from this many of the most likely tokens."
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        description="Above 1 makes tokens of the prompt and the answer so far unlikelier.",
    )
    seed: int = Field(
        0, ge=0, lt=2**32, description="With the same seed a row gets the same answer again."
    )
    stop: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        (), max_length=16, description="Texts that end an answer; they are not part of it."
    )


class BatchSpec(Spec):
    """How batch jobs score rows."""

    batch_size: int | None = Field(
        None,
        ge=1,
        description="Rows per call of the model; 1024, or 256 prompts, when left out. For texts "
        "`max_num_batched_tokens` limits a call instead.",
    )
    max_num_batched_tokens: int | None = Field(
        None,
        ge=1,
        description="Most tokens that the model reads at a time. For texts: tokens of a call, "
        "padding included; 8192 when left out. For a language model: tokens of a step of its "
        "engine; the engine's own choice when left out.",
    )
    num_actors: int | None = Field(
        None,
        ge=1,
        description="Actors that score; one per core when left out. With vLLM: number of engines; "
        "as many as the GPUs have room for when left out.",
    )
    threads_per_actor: int = Field(1, ge=1, description="Threads of the model in each actor.")
    input: str | None = Field(
        None,
        description="Rows to score: a file, a folder, a glob, a URI or a Delta table; the newest "
        "snapshot of the dataset when left out. `{date}` stands for the date of the partition.",
    )
    catch_up: int = Field(
        7,
        ge=0,
        le=366,
        description="Number of past days in which the scheduled run looks for dates without a "
        "commit. It scores those dates too.",
    )
    key: Names = Field(
        (),
        description="Columns that identify a row of the input; dataset.key when left out. If both "
        "are empty, a hash of the prompt identifies a prompt.",
    )
    columns: Names = Field(
        (),
        description="Columns of the input that are written beside the predictions, as the key "
        "columns are. Not for language models.",
    )
    scores: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None,
        description="Classes whose probabilities are written as `scores`: all, or the best ones.",
    )
    max_dead_letters: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Largest share of rows that may fail; if more fail, nothing is committed.",
    )
    price_per_hour: float | None = Field(
        None,
        ge=0,
        description="Cost of the machines per hour, from which the report computes the cost of a "
        "million rows or a million tokens.",
    )
    deadline: Annotated[str, AfterValidator(_check_time)] | None = Field(
        None,
        description="Time by which a job must be done, HH:MM in `schedule.timezone`; a job that "
        "will miss it warns early.",
    )
    yields: bool = Field(
        True,
        description="Whether a job on the machine of `millrace up` gives way to the live models "
        "that have `serving.slo`: its actors run at the lowest priority, and stand still while a "
        "latency is near its bound.",
    )
    max_disagreement: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Largest share of a sample of answers that may differ from the answers of the "
        "same version on the live server; if more differ, nothing is committed. 0.05, or 0.25 for "
        "completions, when left out.",
    )
    max_drift: float = Field(
        0.25,
        ge=0,
        description="Population stability index (PSI) of a column above which drift is reported; "
        "the PSI that chance alone gives is subtracted first.",
    )
    prompt: str = Field("prompt", min_length=1, description="Column that holds the prompts.")
    sampling: SamplingSpec = Field(
        default_factory=SamplingSpec, description="How a prompt is continued."
    )


def _check_cron(line: str) -> str:
    try:
        CronSim(line, datetime.now(UTC))
    except CronSimError as error:
        raise ValueError(f"is not a cron line like '0 3 * * 1': {error}") from error
    return line


def _check_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("is not a time zone like UTC or Europe/Berlin") from error
    return name


Cron = Annotated[str, AfterValidator(_check_cron)]
Timezone = Annotated[str, AfterValidator(_check_timezone)]


class ScheduleSpec(Spec):
    """Cron lines of the scheduled deployments, in `timezone`; null switches a deployment off."""

    train: Cron | None = Field("0 3 * * 1", description="When to retrain.")
    score: Cron | None = Field("0 2 * * *", description="When to score.")
    timezone: Timezone = Field("UTC", description="Timezone of the cron lines.")
