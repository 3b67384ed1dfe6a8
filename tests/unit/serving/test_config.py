import re

import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.graph.triton_graph import read_signature
from millrace.serving.triton.model_config import (
    Signature,
    TensorSpec,
    from_text,
    latest,
    model_config,
    specific,
    to_text,
)

FLOAT = TensorProto.FLOAT
BATCHED = Signature((TensorSpec("x", FLOAT, (-1, 4)),), (TensorSpec("y", FLOAT, (-1, 3)),))


def configured(signature: Signature = BATCHED, **options: object) -> pb.ModelConfig:
    values = {"version_policy": latest(), **options}
    return model_config("m", signature, ServingSpec(max_batch_size=8), **values)


def on_a_gpu(signature: Signature = BATCHED, **serving: object) -> pb.ModelConfig:
    spec = ServingSpec.model_validate({"max_batch_size": 8, "device": "gpu", **serving})
    return model_config("m", signature, spec, version_policy=latest())


def test_batch_dimension_is_dropped() -> None:
    config = configured()
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([4], [3])
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 8)


def test_fixed_first_dimension_is_served_without_batching() -> None:
    fixed = Signature((TensorSpec("x", FLOAT, (1, 4)),), (TensorSpec("y", FLOAT, (1, 3)),))
    config = configured(fixed)
    assert (config.max_batch_size, list(config.input[0].dims)) == (0, [1, 4])
    assert not config.HasField("dynamic_batching")


def test_inputs_with_two_different_dynamic_first_dimensions_are_not_batched() -> None:
    inputs = (TensorSpec("x", FLOAT, (-1, 4), "rows"), TensorSpec("z", FLOAT, (-1,), "words"))
    assert not Signature(inputs, BATCHED.outputs).batches


def test_a_scalar_per_row_is_reshaped() -> None:
    output = configured(
        Signature(BATCHED.inputs, (TensorSpec("label", TensorProto.INT64, (-1,)),))
    ).output[0]
    assert (list(output.dims), output.HasField("reshape"), list(output.reshape.shape)) == (
        [1],
        True,
        [],
    )


def test_labels_go_to_the_output_with_as_many_elements() -> None:
    assert configured(labels=("a", "b", "c")).output[0].label_filename == "labels.txt"
    assert configured(labels=("a", "b")).output[0].label_filename == ""


@pytest.mark.parametrize(("preferred", "sizes"), [(None, []), (4, [4]), (8, [])])
def test_a_smaller_batch_is_preferred_and_requests_may_be_larger(
    preferred: int | None, sizes: list[int]
) -> None:
    serving = ServingSpec(max_batch_size=8, preferred_batch_size=preferred)
    config = model_config("m", BATCHED, serving, version_policy=latest())
    assert list(config.dynamic_batching.preferred_batch_size) == sizes
    assert config.max_batch_size == 8


def test_a_preferred_batch_is_no_larger_than_the_largest() -> None:
    with pytest.raises(ValidationError, match="above serving.max_batch_size, 8"):
        ServingSpec(max_batch_size=8, preferred_batch_size=9)


def test_warm_up_runs_one_row_and_a_full_batch() -> None:
    assert [warmup.batch_size for warmup in configured().model_warmup] == [1, 8]


def test_no_warm_up_with_a_dynamic_dimension() -> None:
    text = Signature((TensorSpec("x", FLOAT, (-1, -1)),), BATCHED.outputs)
    assert not configured(text).model_warmup


def test_specific_versions_are_sorted() -> None:
    policy = configured(version_policy=specific([7, 3])).version_policy
    assert list(policy.specific.versions) == [3, 7]


def test_gpu_instances() -> None:
    kinds = [config.instance_group[0].kind for config in (configured(), on_a_gpu())]
    assert kinds == [pb.ModelInstanceGroup.KIND_CPU, pb.ModelInstanceGroup.KIND_GPU]


def test_the_accelerator_is_written_by_the_names_of_the_cpp_backend() -> None:
    accelerator = {"precision_mode": "FP16", "trt_timing_cache_path": "/var/cache/trt"}
    text = to_text(on_a_gpu(accelerator=accelerator))
    entry = text[text.index("optimization {") :].replace("\n", " ")
    assert 'gpu_execution_accelerator {       name: "tensorrt"' in entry
    parameters = dict(re.findall(r'key: "(\w+)"\s+value: "([^"]+)"', entry))
    assert parameters == {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": "1073741824",
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": "/var/cache/trt",
    }


def test_without_an_accelerator_nothing_is_said_of_one() -> None:
    assert not on_a_gpu().HasField("optimization")


def test_engines_are_not_cached_because_a_cache_knows_no_weights() -> None:
    assert "trt_engine_cache" not in to_text(on_a_gpu(accelerator="tensorrt"))


def test_a_dimension_that_no_warm_up_covers_is_refused_with_an_accelerator() -> None:
    text = Signature((TensorSpec("ids", TensorProto.INT64, (-1, -1)),), BATCHED.outputs)
    assert on_a_gpu(text).max_batch_size == 8
    with pytest.raises(InputError, match="serving.accelerator cannot serve") as caught:
        on_a_gpu(text, accelerator="tensorrt")
    assert caught.value.seen == "the input ids of shape [-1, -1]"


def test_an_accelerator_needs_a_gpu() -> None:
    with pytest.raises(ValidationError, match="serving.accelerator tensorrt needs device: gpu"):
        ServingSpec.model_validate({"accelerator": "tensorrt"})


def test_parameters_have_the_backends_own_names() -> None:
    parameters = configured(parameters={"execution_mode": "1"}).parameters
    values = {key: value.string_value for key, value in parameters.items()}
    assert values == {"intra_op_thread_count": "1", "execution_mode": "1"}


def test_text_round_trip() -> None:
    config = configured(labels=("a", "b", "c"))
    assert from_text(to_text(config)) == config


def test_unreadable_text() -> None:
    with pytest.raises(WorkError, match=r"config\.pbtxt cannot be read"):
        from_text("name: {")


def test_a_type_that_triton_cannot_serve() -> None:
    with pytest.raises(InputError, match="cannot be served"):
        configured(Signature((TensorSpec("x", TensorProto.COMPLEX64, (-1, 4)),), BATCHED.outputs))


def test_signature_is_read_from_the_graph(tmp_path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 4])],
        [onnx.ValueInfoProto(name="y", type=helper.make_tensor_type_proto(FLOAT, None))],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    assert read_signature(tmp_path / "m.onnx").outputs[0].shape == (-1, 4)
