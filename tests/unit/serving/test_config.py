import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2 as pb

from models.errors import InputError, WorkError
from models.specs.serving import ServingSpec
from serving.config import from_text, latest, model_config, specific, to_text
from serving.onnx_graph import Signature, TensorSpec, read_signature

FLOAT = TensorProto.FLOAT
BATCHED = Signature((TensorSpec("x", FLOAT, (-1, 4)),), (TensorSpec("y", FLOAT, (-1, 3)),))


def configured(signature: Signature = BATCHED, **options: object) -> pb.ModelConfig:
    values = {"version_policy": latest(), **options}
    return model_config("m", signature, ServingSpec(max_batch_size=8), **values)


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


def test_warm_up_runs_one_row_and_a_full_batch() -> None:
    assert [warmup.batch_size for warmup in configured().model_warmup] == [1, 8]


def test_no_warm_up_with_a_dynamic_dimension() -> None:
    text = Signature((TensorSpec("x", FLOAT, (-1, -1)),), BATCHED.outputs)
    assert not configured(text).model_warmup


def test_specific_versions_are_sorted() -> None:
    policy = configured(version_policy=specific([7, 3])).version_policy
    assert list(policy.specific.versions) == [3, 7]


def test_gpu_instances() -> None:
    assert configured(device="gpu").instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU


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
