"""A rollout: its steps, the two models that Triton serves meanwhile, and what comes next.

While one is on, the model repository holds

    MODEL.arms/     the champion and the candidate, loaded together; no client knows the name
    MODEL/          as before, but its config.pbtxt is the splitter's, which sends requests there

Where a rollout stands is written in the splitter's configuration and nowhere else, so whoever
comes next reads it there. Decisions only, no effects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.rollout.judge import TESTS, Counts, judge
from millrace.serving.triton.model_config import model_config, specific
from millrace.serving.triton.onnx_graph import Signature
from millrace.serving.triton.server_index import ARMS

BACKEND = "traffic_split"
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Split:
    """How a model's requests are shared out now.

    Attributes:
        model: the model.
        champion: the version that serves.
        candidate: the version on trial.
        kind: canary or shadow.
        weight_percent: percent of the requests that the candidate answers; 0 in a shadow.
        compare_percent: percent of those that the champion answers too.
        sticky_key: the request parameter by whose value requests stay with one version.
        tolerance: relative difference up to which two numbers agree.
        began: when this step began, seconds since 1970; counts of another step differ in it.
        timeout_s: seconds after which the candidate has failed a request.
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

    @property
    def arms(self) -> str:
        """The name of the model that has both versions loaded."""
        return self.model + ARMS


@dataclass(frozen=True)
class Move:
    """What is to happen to a rollout.

    Attributes:
        kind: stay: the step goes on. step: the next weight. promote: the candidate gets all
            requests. back: the champion gets them all again.
        reason: why.
        weight_percent: the weight of the next step.
    """

    kind: Literal["stay", "step", "promote", "back"]
    reason: str
    weight_percent: float | None = None


def weights(spec: RolloutSpec) -> tuple[float, ...]:
    """Return the weight of each step, percent; none where nothing is rolled out in steps."""
    return {"direct": (), "canary": spec.steps, "shadow": (0.0,)}[spec.kind]


def first_split(model: str, champion: int, candidate: int, spec: RolloutSpec, now: float) -> Split:
    """Return the first step of a rollout, which must not be direct.

    Args:
        model: the model.
        champion: the version that serves.
        candidate: the version on trial.
        spec: how it is rolled out.
        now: seconds since 1970.
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
    )


def next_split(split: Split, spec: RolloutSpec, weight: float, now: float) -> Split:
    """Return the step with another weight."""
    values = asdict(split) | {
        "weight_percent": weight,
        "compare_percent": compare_percent(spec, weight),
        "began": now,
    }
    return Split(**values)


def compare_percent(spec: RolloutSpec, weight: float) -> float:
    """Return the percent of the candidate's requests to compare: all of them while they are few."""
    return min(100.0, 100.0 * spec.compare_percent / weight) if weight else 100.0


def move(split: Split, spec: RolloutSpec, counts: Counts, now: float) -> Move:
    """Decide what comes next for a rollout.

    Inconclusive is never a promotion: a step that ends without enough evidence goes back.

    Args:
        split: the step that is on.
        spec: how the candidate is rolled out.
        counts: what was counted in this step, on all replicas.
        now: seconds since 1970.
    """
    over = now - split.began >= spec.hold_s
    steps = weights(spec)
    verdict = judge(counts, spec.judge, tests=TESTS * len(steps), over=over)
    if verdict.kind == "continue":
        return Move("stay", verdict.reason)
    if verdict.kind != "promote":
        return Move("back", f"{verdict.kind}: {verdict.reason}")
    later = [weight for weight in steps if weight > split.weight_percent]
    if later:
        return Move("step", verdict.reason, later[0])
    return Move("promote", verdict.reason)


def arms_config(
    split: Split,
    signature: Signature,
    serving: ServingSpec,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of the model that has both versions loaded.

    Args:
        split: the rollout.
        signature: what both versions take and give; their `served` must be equal.
        serving: how the candidate is served.
        parameters: further ones.
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
    """Return the configuration of the splitter, with which clients see the same model as before.

    Names, types, shapes, labels and the largest batch are the served model's. Requests are not
    merged and nothing is reshaped here, so each goes on as the client sent it.
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
    """Read a rollout back from a model's configuration; None where none is on."""
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
    )
