"""Language models for Triton's vLLM backend: what is written for it, and who refuses it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from millrace.models.common.digest import digest_of, digest_of_model
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Endpoint
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.release.trial import NO_BACKEND, load_seconds, require_backend
from millrace.serving.triton.language.language_config import engine_arguments
from millrace.serving.triton.model_config import from_text, loaded_anew, specific, to_text
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.streams.stream_request import is_death, parse_error, parse_piece
from millrace.serving.triton.version_config import config_of, one_config_for, triton_kind
from millrace.serving.triton.version_folder import Artifact

PLACE = Path("/models/lm/3")


def check(artifact: Artifact) -> None:
    triton_kind(artifact).check(artifact)


def version(folder: Path, *names: str, **generation: Any) -> Artifact:
    folder.mkdir(exist_ok=True)
    files = {name: folder / name for name in names}
    for file in files.values():
        file.write_text(file.name)
    digest = digest_of_model({name: digest_of(file) for name, file in files.items()})
    serving = ServingSpec.model_validate({"generation": generation})
    return Artifact(files, digest, "language", serving=serving)


def of_vllm(folder: Path, **generation: Any) -> Artifact:
    return version(folder, "config.json", "model.safetensors", "tokenizer.json", **generation)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    folders = tmp_path / "repository", tmp_path / "staging"
    for folder in folders:
        folder.mkdir()
    return Repository(*folders)


def test_the_pipelines_keys_are_the_engines() -> None:
    given = GenerationSpec(
        max_num_seqs=8, cache_size_gib=6, stream_interval=2, tensor_parallel_size=2
    )
    assert engine_arguments(PLACE, given) == {
        "model": "/models/lm/3",
        "dtype": "auto",
        "tensor_parallel_size": 2,
        "max_num_seqs": 8,
        "max_model_len": -1,
        "kv_cache_memory_bytes": 3 * 2**30,
        "gpu_memory_utilization": 0.01,
        "enable_prefix_caching": True,
        "stream_interval": 2,
    }


def test_a_draft_is_in_the_versions_folder() -> None:
    told = engine_arguments(PLACE, GenerationSpec(draft="small", num_assistant_tokens=3))
    assert told["speculative_config"] == {
        "method": "draft_model",
        "model": "/models/lm/3/draft",
        "num_speculative_tokens": 3,
    }


def test_a_version_is_staged_with_the_place_that_it_has_then(
    repository: Repository, tmp_path: Path
) -> None:
    repository.stage("lm", 3, of_vllm(tmp_path / "form", max_num_seqs=4))
    folder = repository.root / "lm" / "3"
    told = json.loads((folder / "model.json").read_text())
    assert (told["model"], told["max_num_seqs"]) == (str(folder), 4)
    assert repository.is_whole("lm", 3)


def test_changed_arguments_of_the_engine_are_no_whole_version(
    repository: Repository, tmp_path: Path
) -> None:
    artifact = of_vllm(tmp_path / "form")
    repository.stage("lm", 3, artifact)
    file = repository.root / "lm" / "3" / "model.json"
    file.chmod(0o640)
    file.write_text(file.read_text().replace("32", "64"))
    assert not repository.is_whole("lm", 3)
    repository.stage("lm", 3, artifact)
    assert repository.is_whole("lm", 3)


def test_a_graph_for_openvino_has_no_arguments_beside_it(
    repository: Repository, tmp_path: Path
) -> None:
    repository.stage("lm", 1, version(tmp_path / "form", "openvino_model.xml", "config.json"))
    assert not (repository.root / "lm" / "1" / "model.json").exists()
    assert repository.is_whole("lm", 1)


def test_the_configuration_is_vllms(tmp_path: Path) -> None:
    made = config_of(
        *("lm", of_vllm(tmp_path)), version_policy=specific([3]), parameters=loaded_anew()
    )
    config = from_text(to_text(made))
    inputs = {each.name: each.optional for each in config.input}
    assert (config.backend, config.max_batch_size) == ("vllm", 0)
    assert config.model_transaction_policy.decoupled
    assert config.instance_group[0].kind == pb.ModelInstanceGroup.KIND_MODEL
    assert config.parameters["REPORT_CUSTOM_METRICS"].string_value == "true"
    assert set(loaded_anew()) < set(config.parameters)
    assert inputs.pop("text_input") is False
    assert all(inputs.values())
    assert "messages" not in inputs


def test_only_vllm_shares_a_model_between_gpus(tmp_path: Path) -> None:
    check(of_vllm(tmp_path / "a", tensor_parallel_size=2))
    with pytest.raises(InputError, match="tensor_parallel_size"):
        check(version(tmp_path / "b", "openvino_model.xml", tensor_parallel_size=2))


def test_versions_of_two_engines_do_not_share_a_configuration(tmp_path: Path) -> None:
    one, other = of_vllm(tmp_path / "a"), version(tmp_path / "b", "openvino_model.xml")
    assert one_config_for(one, one)
    assert not one_config_for(one, other)


def test_vllm_has_time_to_compile() -> None:
    assert load_seconds(ServingSpec(), 1, compiles=True) > load_seconds(ServingSpec(), 1)


class Server:
    """A server that refuses every load with one text."""

    endpoint = Endpoint()

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []

    def load_without_files(self, name: str, config: str) -> None:
        self.asked.append((name, json.loads(config)))
        raise WorkError(f"Triton refused to load {name}", seen=self.text)


def test_a_server_without_the_backend_is_told_apart_from_one_that_lacks_the_files(
    tmp_path: Path,
) -> None:
    artifact, server = of_vllm(tmp_path), Server("'model.json' must be provided")
    require_backend(artifact, server)  # type: ignore[arg-type]
    assert [config for _, config in server.asked] == [{"backend": "vllm"}]
    with pytest.raises(WorkError, match="no vllm backend") as error:
        require_backend(artifact, Server(f"Invalid argument: {NO_BACKEND} for"))  # type: ignore[arg-type]
    assert "MILLRACE_TRITON" in str(error.value.hint)


def test_nobody_is_asked_for_the_backends_that_come_with_the_server(tmp_path: Path) -> None:
    server = Server(NO_BACKEND)
    require_backend(version(tmp_path, "openvino_model.xml"), server)  # type: ignore[arg-type]
    assert not server.asked


def test_what_vllm_says_of_a_request_is_the_requests_fault_unless_the_engine_died() -> None:
    said = "Error generating stream: The decoder prompt cannot be empty"
    assert parse_error(said, "lm").seen == "The decoder prompt cannot be empty"
    assert isinstance(parse_error(said, "lm"), InputError)
    assert is_death(parse_error("Error generating stream: EngineCore encountered an issue.", "lm"))


def test_an_answer_of_vllm_that_goes_on_has_no_reason_to_end() -> None:
    outputs = {
        "text_output": serialize_byte_tensor(np.array([b"a", b"b"], object)).item(),
        "finish_reason": serialize_byte_tensor(np.array([b"None", b"stop"], object)).item(),
        "num_input_tokens": np.uint32(3).tobytes(),
        "num_output_tokens": np.array([1, 1], np.uint32).tobytes(),
    }
    response = service_pb2.ModelInferResponse(raw_output_contents=list(outputs.values()))
    for name in outputs:
        response.outputs.add(name=name)
    piece = parse_piece(response)
    assert piece is not None
    assert piece.finish_reasons == ("", "stop")
