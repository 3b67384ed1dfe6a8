"""A rollout: its steps, the configurations of its two models, the next move, the traffic needed.

The functions of this file have no side effects.

During a rollout the model repository has

    MODEL.arms/     the champion and the candidate, loaded together; no client knows this name
    MODEL/          as before, but with the config.pbtxt of the splitter, which sends each request
                    to a version in MODEL.arms

The state of a rollout is stored only in the splitter's configuration, where the next release reads
it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.rollout_spec import JudgeSpec, RolloutSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.rollout.judge import MOST_LATE, Counts, count_tests, judge
from millrace.serving.triton.model_config import Signature, model_config, specific
from millrace.serving.triton.server_index import ARMS

BACKEND = "traffic_split"
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Split:
    """A step of a rollout: how the requests of a model are split.

    Attributes:
        model: the model.
        champion: the version that serves.
        candidate: the version on trial.
        kind: canary or shadow.
        weight_percent: percent of the requests that the candidate answers; 0 in a shadow.
        compare_percent: percent of the candidate's requests that the champion answers too.
        sticky_key: the request parameter whose value decides which version answers.
        tolerance: relative difference up to which two numbers agree.
        began: when this step began, in seconds since 1970; also identifies the step's counters.
        timeout_s: seconds without an answer after which the candidate has failed a request.
        goal_ms: milliseconds after which an answer is late; infinite if none is.
    """

    model: str
    champion: int
    candidate: int
    kind: Literal["canary", "shadow"]
    weight_percent: float
    compare_percent: float
    sticky_key: str
    tolerance: float
    began: float
    timeout_s: float = TIMEOUT_SECONDS
    goal_ms: float = math.inf

    @property
    def arms(self) -> str:
        """The name of the helper model that has both versions loaded."""
        return self.model + ARMS


@dataclass(frozen=True)
class Move:
    """The next move of a rollout.

    Attributes:
        kind: stay: the step goes on. step: the next weight. promote: the candidate gets all
            requests. back: the champion gets all requests again.
        reason: why the judge decided so.
        weight_percent: the candidate's weight in the next step; None unless `kind` is step.
    """

    kind: Literal["stay", "step", "promote", "back"]
    reason: str
    weight_percent: float | None = None


def weights(spec: RolloutSpec) -> tuple[float, ...]:
    """Return the weight of each step, in percent; a direct rollout has no steps."""
    return {"direct": (), "canary": spec.steps, "shadow": (0.0,)}[spec.kind]


def first_split(model: str, champion: int, candidate: int, spec: RolloutSpec, now: float) -> Split:
    """Return the first step of a canary or shadow rollout.

    Args:
        model: the model.
        champion: the version that serves.
        candidate: the version on trial.
        spec: the rollout's limits and steps; its kind is canary or shadow.
        now: the time, in seconds since 1970.
    """
    weight = weights(spec)[0]
    return Split(
        model=model,
        champion=champion,
        candidate=candidate,
        kind="shadow" if spec.kind == "shadow" else "canary",
        weight_percent=weight,
        compare_percent=compare_percent(spec, weight),
        sticky_key=spec.sticky_key,
        tolerance=spec.judge.tolerance,
        began=now,
        goal_ms=spec.judge.p99_ms or math.inf,
    )


def next_split(split: Split, spec: RolloutSpec, weight: float, now: float) -> Split:
    """Return the step that follows `split`, with another weight."""
    values = asdict(split) | {
        "weight_percent": weight,
        "compare_percent": compare_percent(spec, weight),
        "began": now,
    }
    return Split(**values)


def compare_percent(spec: RolloutSpec, weight: float) -> float:
    """Return the percent of the candidate's requests to compare; 100 if the weight is small."""
    return min(100.0, 100.0 * spec.compare_percent / weight) if weight else 100.0


def decide_move(split: Split, spec: RolloutSpec, counts: Counts, now: float) -> Move:
    """Decide the next move of a rollout.

    A step that ends without enough evidence is inconclusive: the champion gets all requests again.

    Args:
        split: the running step.
        spec: the rollout's steps and limits.
        counts: the counts of this step, summed over all replicas.
        now: the time, in seconds since 1970.
    """
    is_over = now - split.began >= spec.hold_s
    steps = weights(spec)
    verdict = judge(counts, spec.judge, tests=count_tests(spec.judge) * len(steps), is_over=is_over)
    if verdict.kind == "continue":
        return Move("stay", verdict.reason)
    if verdict.kind != "promote":
        return Move("back", f"{verdict.kind}: {verdict.reason}")
    later = [weight for weight in steps if weight > split.weight_percent]
    if later:
        return Move("step", verdict.reason, later[0])
    return Move("promote", verdict.reason)


def min_requests(spec: JudgeSpec, tests: int) -> tuple[int, int]:
    """Return how many requests a candidate must answer in a step, and how many must be compared.

    Both numbers are for a candidate that never fails, is never late and always agrees. They are
    the smallest n for which the judge's Clopper-Pearson bounds reach the limits: `(1 - limit)^n`
    for failures and late answers, and `limit^n` for agreement, are at most the level of one test.
    Any other candidate needs more requests, and so does a candidate whose latencies vary.

    Args:
        spec: the limits and the level.
        tests: number of tests in the whole rollout.
    """
    level = math.log(spec.level / tests)
    rarest = min(spec.max_failures, MOST_LATE) if spec.p99_ms else spec.max_failures
    answered = math.ceil(level / math.log1p(-rarest))
    compared = math.ceil(level / math.log(spec.min_agreement)) if spec.min_agreement else 0
    return answered, compared


def min_model_requests(spec: RolloutSpec) -> tuple[int, ...]:
    """Return how many requests the model must get in each step for the judge to reach a verdict."""
    steps = weights(spec)
    tests = count_tests(spec.judge) * len(steps)
    answered, compared = min_requests(spec.judge, tests) if steps else (0, 0)
    needed = []
    for weight in steps:
        share = weight / 100 or 1.0  # a shadow gets a copy of all requests
        both = share * compare_percent(spec, weight) / 100
        needed.append(round(max(answered / share, compared / both)))
    return tuple(needed)


def describe_traffic(spec: RolloutSpec) -> str:
    """Return in words how much traffic a canary or shadow rollout needs."""
    needed = [
        f"{requests:,} requests{f' at {weight:g} %' * bool(weight)}"
        f" ({requests / spec.hold_s:,.1f}/s)"
        for weight, requests in zip(weights(spec), min_model_requests(spec), strict=True)
    ]
    return (
        f"rollout: a step of {spec.hold_s:g} s needs at least {', '.join(needed)}; "
        "with less traffic the result is inconclusive, and the champion gets all requests again"
    )


def arms_config(
    split: Split,
    signature: Signature,
    serving: ServingSpec,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of the model that has both versions loaded.

    Args:
        split: the step.
        signature: inputs and outputs of both versions; both must have an equal `Signature.served`.
        serving: the candidate's serving settings.
        parameters: further parameters of the configuration.
    """
    return model_config(
        split.arms,
        signature,
        serving,
        version_policy=specific([split.champion, split.candidate]),
        parameters=parameters,
    )


def splitter_config(
    split: Split, signature: Signature, serving: ServingSpec, labels: Sequence[str] = ()
) -> pb.ModelConfig:
    """Return the configuration of the splitter, which looks to clients like the served model.

    It has the served model's tensor names, types, shapes, labels and largest batch. The splitter
    neither batches nor reshapes requests, so that it passes each on as the client sent it.
    """
    config = model_config(
        split.model,
        signature,
        serving,
        version_policy=specific([split.champion]),
        labels=labels,
        dynamic_batching=False,
    )
    config.backend = BACKEND
    config.ClearField("model_warmup")
    config.ClearField("optimization")
    config.ClearField("parameters")
    for tensor in (*config.input, *config.output):
        tensor.ClearField("reshape")
    config.instance_group[0].CopyFrom(
        pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)
    )
    values = {**asdict(split), "arms": split.arms}
    del values["model"]
    for key, value in values.items():
        config.parameters[key].string_value = str(value)
    return config


def split_of(config: pb.ModelConfig) -> Split | None:
    """Return the running step in a model's configuration; None without a splitter."""
    if config.backend != BACKEND:
        return None
    values = {key: parameter.string_value for key, parameter in config.parameters.items()}
    return Split(
        model=config.name,
        champion=int(values["champion"]),
        candidate=int(values["candidate"]),
        kind="shadow" if values["kind"] == "shadow" else "canary",
        weight_percent=float(values["weight_percent"]),
        compare_percent=float(values["compare_percent"]),
        sticky_key=values["sticky_key"],
        tolerance=float(values["tolerance"]),
        began=float(values["began"]),
        timeout_s=float(values["timeout_s"]),
        goal_ms=float(values.get("goal_ms", math.inf)),
    )
