from dataclasses import replace

import pytest
from onnx import TensorProto
from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.pipeline import Pipeline
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.rollout.judge import Arm, Counts
from millrace.serving.rollout.rollout import (
    Split,
    arms_config,
    compare_percent,
    decide_move,
    first_split,
    next_split,
    split_of,
    splitter_config,
    weights,
)
from millrace.serving.triton.model_config import (
    Signature,
    TensorSpec,
    from_text,
    model_config,
    specific,
    to_text,
)
from millrace.serving.triton.server_index import ARMS, TRIAL

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SIGNATURE = Signature(
    (TensorSpec("x", FLOAT, (-1, 4)),),
    (TensorSpec("scores", FLOAT, (-1, 3)), TensorSpec("label", INT64, (-1,))),
)
CANARY = RolloutSpec(kind="canary", hold_s=60)
SPLIT = first_split("m", 1, 2, CANARY, now=1000.5)
ARM = Arm(3200, 0, 1.0, 200, 1400.0, 9802.0)
GOOD = Counts(ARM, ARM, compared=3000, agreeing=3000)
BAD = replace(GOOD, agreeing=2000)


@pytest.mark.parametrize("made_here", [f"m{ARMS}", f"m{TRIAL}1"])
def test_no_pipeline_has_the_name_of_a_model_that_is_made_here(made_here: str) -> None:
    dataset = {"source": "x", "target": "y"}
    Pipeline.model_validate({"name": "m", "dataset": dataset})
    with pytest.raises(ValidationError, match="name"):
        Pipeline.model_validate({"name": made_here, "dataset": dataset})


def test_the_first_step_is_the_smallest_weight() -> None:
    assert (SPLIT.weight_percent, SPLIT.kind, SPLIT.arms) == (1, "canary", "m.arms")
    shadow = first_split("m", 1, 2, RolloutSpec(kind="shadow"), now=0)
    assert (shadow.weight_percent, shadow.kind) == (0, "shadow")


def test_a_direct_rollout_has_no_steps() -> None:
    assert weights(RolloutSpec()) == ()


def test_few_requests_are_all_compared_and_of_many_a_share() -> None:
    assert [compare_percent(CANARY, weight) for weight in (1, 10, 50)] == [100, 100, 20]
    assert compare_percent(CANARY, 0) == 100


def test_a_step_that_is_not_over_stays() -> None:
    assert decide_move(SPLIT, CANARY, GOOD, now=1030).kind == "stay"


def test_a_step_that_held_goes_on_to_the_next_and_the_last_one_to_all() -> None:
    split, seen = SPLIT, []
    while (to := decide_move(split, CANARY, GOOD, now=split.began + 60)).weight_percent is not None:
        seen.append((to.kind, to.weight_percent))
        split = next_split(split, CANARY, to.weight_percent, now=split.began + 60)
    assert seen == [("step", 10), ("step", 50)]
    assert to.kind == "promote"
    assert (split.began, split.compare_percent) == (1120.5, 20)


def test_a_bad_candidate_goes_back_at_once_and_an_unproved_one_in_the_end() -> None:
    assert decide_move(SPLIT, CANARY, BAD, now=1001).kind == "back"
    ended = decide_move(SPLIT, CANARY, Counts(), now=1061)
    assert ended.kind == "back"
    assert ended.reason.startswith("inconclusive")


def test_a_shadow_is_promoted_after_its_one_step() -> None:
    spec = RolloutSpec(kind="shadow", hold_s=60)
    assert decide_move(first_split("m", 1, 2, spec, now=0), spec, GOOD, now=60).kind == "promote"


def test_a_rollout_is_read_back_from_its_configuration() -> None:
    config = splitter_config(SPLIT, SIGNATURE, ServingSpec())
    assert split_of(from_text(to_text(config))) == SPLIT


def test_the_splitter_runs_on_the_cpu_whatever_its_arms_run_on() -> None:
    serving = ServingSpec.model_validate({"device": "gpu", "accelerator": "tensorrt"})
    splitter = splitter_config(SPLIT, SIGNATURE, serving)
    arms = arms_config(SPLIT, SIGNATURE, serving)
    assert splitter.instance_group[0].kind == pb.ModelInstanceGroup.KIND_CPU
    assert not splitter.HasField("optimization")
    assert arms.instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU
    assert arms.HasField("optimization")


def test_a_plain_configuration_is_no_rollout() -> None:
    plain = model_config("m", SIGNATURE, ServingSpec(), version_policy=specific([1]))
    assert split_of(plain) is None


def test_clients_see_the_same_model() -> None:
    labels = ("a", "b", "c")
    plain = model_config("m", SIGNATURE, ServingSpec(), version_policy=specific([1]), labels=labels)
    split = splitter_config(SPLIT, SIGNATURE, ServingSpec(), labels)
    assert split.max_batch_size == plain.max_batch_size == 64
    for ours, theirs in zip(
        (*split.input, *split.output), (*plain.input, *plain.output), strict=True
    ):
        assert (ours.name, ours.data_type, ours.dims) == (
            theirs.name,
            theirs.data_type,
            theirs.dims,
        )
    assert split.output[0].label_filename == "labels.txt"


def test_the_splitter_merges_and_reshapes_nothing() -> None:
    config = splitter_config(SPLIT, SIGNATURE, ServingSpec(instance_count=4))
    assert not config.HasField("dynamic_batching")
    assert not config.output[1].HasField("reshape")
    assert (config.backend, config.instance_group[0].count) == ("traffic_split", 1)
    assert list(config.version_policy.specific.versions) == [1]


def test_the_arms_have_both_versions() -> None:
    config = arms_config(SPLIT, SIGNATURE, ServingSpec())
    assert (config.name, config.backend) == ("m.arms", "onnxruntime")
    assert list(config.version_policy.specific.versions) == [1, 2]
    assert config.HasField("dynamic_batching")


@pytest.mark.parametrize("steps", [[10, 1], [5, 5], [0, 10], [101], []])
def test_steps_must_rise_within_a_hundred_percent(steps: list[float]) -> None:
    with pytest.raises(ValidationError):
        RolloutSpec(kind="canary", steps=steps)  # type: ignore[arg-type]


def test_a_pipeline_rolls_out_at_once_when_it_says_nothing() -> None:
    pipeline = Pipeline.model_validate({"name": "m", "dataset": {"source": "x", "target": "y"}})
    assert pipeline.rollout.kind == "direct"


def test_a_split_has_a_weight_that_may_be_no_whole_number() -> None:
    split = replace(SPLIT, weight_percent=0.5)
    assert isinstance(split, Split)
    assert split_of(splitter_config(split, SIGNATURE, ServingSpec())) == split
