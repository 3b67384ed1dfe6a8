"""gRPC through the guard: which methods pass, and that streams and large messages arrive whole."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.guard import envoy_process
from millrace.serving.guard.envoy_config import HEADERS_SECONDS, MAX_BODY_BYTES
from millrace.serving.guard.envoy_grpc import CLIENT_METHODS, MANAGING_METHODS, SERVICE
from millrace.serving.guard.token_names import TOKEN_METADATA
from millrace.serving.triton.client import to_input
from millrace.serving.triton.streams.stream_client import translate_error
from tests.integration.guard_stand import Stand, stand
from tests.integration.ports import free_endpoint

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)
COUNTS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            many, pause = pb_utils.get_input_tensor_by_name(request, "n").as_numpy()
            for number in range(int(many)):
                if sender.is_cancelled():
                    open({cancelled!r}, "w").close()
                    break
                each = pb_utils.Tensor("i", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([each]))
                time.sleep(pause / 1000)
            error = pb_utils.TritonError("no more", pb_utils.TritonError.NOT_FOUND)
            sender.send(pb_utils.InferenceResponse([], error))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNTS_CONFIG = {
    "name": "counts",
    "backend": "python",
    "model_transaction_policy": {"decoupled": True},
    "input": [{"name": "n", "data_type": "TYPE_INT32", "dims": [2]}],
    "output": [{"name": "i", "data_type": "TYPE_INT32", "dims": [1]}],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("guard") / "home") as found:
        yield found


@pytest.fixture
def channel(served: Stand) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.endpoint.grpc, UNLIMITED) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture(scope="module")
def cancelled(served: Stand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Load the model `counts`, and return the file that it writes when it is cancelled."""
    return load_counts(served, tmp_path_factory.mktemp("cancelled") / "cancelled")


def load_counts(served: Stand, cancelled: Path) -> Path:
    """Load a model that streams numbers and then fails."""
    with grpc.insecure_channel(served.endpoint.grpc) as opened:
        asked = pb.RepositoryModelLoadRequest(model_name="counts")
        asked.parameters["config"].string_param = json.dumps(COUNTS_CONFIG)
        code = COUNTS.format(cancelled=str(cancelled)).encode()
        asked.parameters["file:1/model.py"].bytes_param = code
        metadata = [(TOKEN_METADATA, served.endpoint.token)]
        stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)
        stub.RepositoryModelLoad(asked, metadata=metadata)
    return cancelled


def wait_for_file(path: Path, seconds: float = 15) -> None:
    """Wait until a file is there, and remove it."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.02)
    path.unlink()


def counting(many: int, pause_ms: int) -> pb.ModelInferRequest:
    """Return a request for so many numbers, with so long a pause after each."""
    request = pb.ModelInferRequest(model_name="counts")
    tensor = to_input("n", np.array([many, pause_ms], np.int32))
    request.inputs.append(tensor._get_tensor())
    request.raw_input_contents.append(tensor._get_content())
    return request


def call(channel: grpc.Channel, path: str, message: bytes = b"", **options: Any) -> grpc.RpcError:
    """Call a method that is expected to be refused, and return the error."""
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(path)(message, timeout=30, **options)
    return raised.value


def test_every_method_of_triton_is_either_for_clients_or_for_the_token() -> None:
    methods = pb.DESCRIPTOR.services_by_name[SERVICE.partition(".")[2]].methods_by_name
    assert {*CLIENT_METHODS, *MANAGING_METHODS} == set(methods)


@pytest.mark.parametrize("method", MANAGING_METHODS)
def test_what_changes_the_server_is_refused_with_a_reason(served, channel, method) -> None:
    path = f"/{SERVICE}/{method}"
    refused = call(channel, path)
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "is restricted" in refused.details()
    assert TOKEN_METADATA in refused.details()
    wrong = call(channel, path, metadata=[(TOKEN_METADATA, "wrong")])
    assert "is restricted" in wrong.details()  # Triton compares the token


@pytest.mark.parametrize(
    "path",
    [
        *(f"/{SERVICE}/Nothing", f"/{SERVICE}/modelinfer", f"/{SERVICE}/", "/"),
        *("/grpc.health.v1.Health/Check", f"/{SERVICE}//ModelInfer", f"/{SERVICE}/Model%2FInfer"),
    ],
)
def test_other_methods_are_not_there_even_with_the_token(served, channel, path) -> None:
    for metadata in ([], [(TOKEN_METADATA, served.endpoint.token)]):
        refused = call(channel, path, metadata=metadata)
        assert refused.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "ModelInfer" in refused.details()


@pytest.mark.parametrize(
    "metadata",
    [
        *([("origin", "http://evil.example")], [("origin", "null")]),
        *([("origin", "http://localhost:9")], [("sec-fetch-site", "cross-site")]),
    ],
)
@pytest.mark.parametrize("method", ["ModelInfer", "RepositoryModelUnload"])
def test_a_page_of_another_origin_is_refused(served, channel, metadata, method) -> None:
    token = (TOKEN_METADATA, served.endpoint.token)
    refused = call(channel, f"/{SERVICE}/{method}", metadata=[*metadata, token])
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "origin" in refused.details()


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example:8001"])
def test_a_foreign_host_is_refused(served, name) -> None:
    options = (("grpc.default_authority", name),)
    with grpc.insecure_channel(served.endpoint.grpc, options) as opened:
        refused = call(opened, f"/{SERVICE}/ServerLive")
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "Host" in refused.details()


def test_http_1_is_not_spoken_there(served) -> None:
    with contextlib.suppress(OSError, EOFError):
        answer = served.ask(path="/v2", method="GET", port=served.endpoint.grpc_port)
        pytest.fail(str(answer))
    assert served.is_right()


def test_a_message_larger_than_http_allows_is_answered(served) -> None:
    word = np.array([["w" * (MAX_BODY_BYTES + 2**25)]], np.object_)
    assert served.client.predict("words", {"w": word})["same"][0, 0] == word[0, 0].encode()
    assert served.is_right()


def test_the_numbers_and_the_error_of_a_stream_arrive(stub, cancelled) -> None:
    responses = list(stub.ModelStreamInfer(iter([counting(3, 1)]), timeout=30))
    assert [each.error_message for each in responses[:3]] == ["", "", ""]
    assert "no more" in responses[3].error_message


def test_what_triton_says_of_a_wrong_request_arrives(channel) -> None:
    message = pb.ModelInferRequest(model_name="nowhere").SerializeToString()
    refused = call(channel, f"/{SERVICE}/ModelInfer", message)
    assert refused.code() is grpc.StatusCode.NOT_FOUND
    assert "nowhere" in refused.details()


LONG = "a" * 100_000


def asking() -> pb.ModelInferRequest:
    """Return a request that `sums` answers."""
    request = pb.ModelInferRequest(model_name="sums")
    tensor = to_input("x", np.zeros((1, 4), np.float32))
    request.inputs.append(tensor._get_tensor())
    request.raw_input_contents.append(tensor._get_content())
    return request


def too_long() -> dict[str, pb.ModelInferRequest]:
    """Return requests with what Triton's errors repeat, each longer than a header may be."""
    made = {
        name: asking()
        for name in (*("model", "version", "id", "input", "shape", "output"), "region", "many")
    }
    made["model"].model_name = made["version"].model_version = made["id"].id = LONG
    made["input"].inputs[0].name = LONG
    made["shape"].inputs[0].shape[:] = [1] * len(LONG)
    made["output"].outputs.add(name=LONG)
    made["region"].outputs.add(name="y").parameters["shared_memory_region"].string_param = LONG
    for number in range(4000):
        made["many"].inputs.add(name=f"input_{number}", datatype="FP32", shape=[1])
    return made


@pytest.mark.parametrize("what", too_long())
def test_names_too_long_for_a_header_are_refused(served, channel, what) -> None:
    refused = call(channel, f"/{SERVICE}/ModelInfer", too_long()[what].SerializeToString())
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "exceed 16384 bytes" in refused.details()


@pytest.mark.parametrize(
    "method", ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"]
)
def test_a_question_about_a_name_too_long_is_refused(served, channel, method) -> None:
    message = pb.ModelMetadataRequest(name="sums", version=LONG).SerializeToString()
    refused = call(channel, f"/{SERVICE}/{method}", message)
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "exceeds 8192 bytes" in refused.details()


def test_a_name_too_long_is_refused_after_large_content(served, channel) -> None:
    content = pb.ModelInferRequest(raw_input_contents=[b"\1" * 3_000_001]).SerializeToString()
    message = content + too_long()["version"].SerializeToString()
    refused = call(channel, f"/{SERVICE}/ModelInfer", message)
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "exceed 16384 bytes" in refused.details()
    assert served.is_right()


def test_a_compressed_message_is_refused(served, channel) -> None:
    options = {"compression": grpc.Compression.Gzip}
    message = too_long()["model"].SerializeToString()
    refused = call(channel, f"/{SERVICE}/ModelInfer", message, **options)
    assert refused.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "uncompressed" in refused.details()


def test_names_too_long_of_one_client_cost_others_nothing(served, channel) -> None:
    message = too_long()["model"].SerializeToString()
    good, infer = asking().SerializeToString(), f"/{SERVICE}/ModelInfer"
    with grpc.insecure_channel(served.endpoint.grpc, (*UNLIMITED, _OWN_CONNECTION)) as other:
        for _ in range(20):
            sent = [channel.unary_unary(infer).future(good) for _ in range(20)]
            call(other, infer, message)
            assert all(each.exception() is None for each in sent)


def test_a_stream_that_the_client_cancels_is_cancelled_in_triton(stub, cancelled) -> None:
    stream = stub.ModelStreamInfer(iter([counting(2000, 10)]))
    assert not next(stream).error_message
    stream.cancel()
    wait_for_file(cancelled)


def test_a_client_that_goes_away_is_cancelled_in_triton(served, cancelled) -> None:
    with grpc.insecure_channel(served.endpoint.grpc) as opened:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)
        assert not next(stub.ModelStreamInfer(iter([counting(2000, 10)]))).error_message
    wait_for_file(cancelled)


def test_a_deadline_ends_a_stream_and_nothing_else_does(stub, cancelled) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.ModelStreamInfer(iter([counting(2000, 10)]), timeout=0.5))
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for_file(cancelled)
    silent = list(stub.ModelStreamInfer(iter([counting(1, 1000 * (HEADERS_SECONDS + 1))])))
    assert "no more" in silent[1].error_message


def test_without_a_triton_it_is_unavailable(tmp_path: Path) -> None:
    installation, endpoint = Installation(tmp_path, "", "").prepared(), free_endpoint()
    with (
        envoy_process.running(installation, endpoint),
        grpc.insecure_channel(endpoint.grpc) as opened,
    ):
        refused = call(opened, f"/{SERVICE}/ServerLive")
        assert refused.code() is grpc.StatusCode.UNAVAILABLE


def triton_of(endpoint: Endpoint) -> psutil.Process:
    """Return the process of the server with this gRPC port."""
    return _process_with(f"--grpc-port={endpoint.grpc_port}")


def guard_of(endpoint: Endpoint) -> psutil.Process:
    """Return the process of the guard with this HTTP port."""
    return _process_with(f"guard-{endpoint.http_port}.json")


def _process_with(ending: str) -> psutil.Process:
    for process in psutil.process_iter(["cmdline"]):
        if any(word.endswith(ending) for word in process.info["cmdline"] or ()):
            return process
    raise AssertionError(f"no process has {ending}")


def test_a_triton_that_is_killed_ends_the_stream_at_once(tmp_path: Path) -> None:
    with stand(tmp_path / "home") as other:
        load_counts(other, tmp_path / "cancelled")
        with grpc.insecure_channel(other.endpoint.grpc) as opened:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(opened)
            stream = stub.ModelStreamInfer(iter([counting(2000, 10)]))
            next(stream)
            begin = time.monotonic()
            os.kill(triton_of(other.endpoint).pid, signal.SIGKILL)
            with pytest.raises(grpc.RpcError) as raised:
                list(stream)
            assert time.monotonic() - begin < 5
            error = translate_error(raised.value, "counts", other.endpoint, 600)
            assert isinstance(error, TransientError)
            assert "no Triton answers" in str(error.seen)
            refused = call(opened, f"/{SERVICE}/ServerLive")
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
