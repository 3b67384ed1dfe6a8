import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.triton import backend_directory, server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path, "", "").prepared()


def test_behind_a_guard_every_listener_is_a_socket(installation) -> None:
    argv, _ = server.command(installation, Endpoint())
    for kind in ("http", "grpc", "metrics"):
        assert f"--{kind}-address=unix:run/triton-8001.{kind}" in argv


def test_without_a_guard_every_listener_is_on_loopback(installation) -> None:
    argv, _ = server.command(installation, Endpoint(), guarded=False)
    for kind in ("http", "grpc", "metrics"):
        assert f"--{kind}-address=127.0.0.1" in argv


def test_a_public_address_is_refused(installation) -> None:
    with pytest.raises(InputError, match="loopback address"):
        server.command(installation, Endpoint(host="0.0.0.0"))


@pytest.mark.parametrize("guarded", [True, False])
def test_a_token_closes_what_changes_the_server_and_is_no_argument(installation, guarded) -> None:
    argv, environment = server.command(installation, Endpoint(token="s3cret"), guarded=guarded)
    rule = "model-repository,shared-memory,trace,logging:millrace-token=s3cret"
    flags = [f"--grpc-restricted-protocol={rule}", f"--http-restricted-api={rule}"]
    named = [environment[each[1:]] for each in argv if each.startswith("@")]
    assert named == (flags[:1] if guarded else flags)
    assert "s3cret" not in "".join(argv)


def test_an_endpoint_without_a_token_is_open(installation) -> None:
    argv, environment = server.command(installation, Endpoint())
    assert not [flag for flag in [*argv, *environment.values()] if "restricted" in flag]
    assert not [flag for flag in argv if flag.startswith("@")]


def test_the_server_inherits_no_variables(installation, monkeypatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    _, environment = server.command(installation, Endpoint())
    assert sorted(environment) == ["LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE"]


def test_backends_are_prepared_once(installation) -> None:
    folder = backend_directory.prepare_backends(installation.home)
    before = (folder / "python/triton_python_backend_stub").stat().st_ino
    assert backend_directory.prepare_backends(installation.home) == folder
    assert (folder / "python/triton_python_backend_stub").stat().st_ino == before
    assert (folder / "onnxruntime/model.py").is_file()
    assert (folder / "python/libtriton_python.so").is_file()


def test_two_servers_have_different_shared_memory(installation) -> None:
    def region(port: int) -> str:
        argv, _ = server.command(installation, Endpoint(grpc_port=port))
        return next(flag for flag in argv if "shm-region-prefix-name" in flag)

    assert region(1) != region(2)


def test_the_shared_memory_of_a_home_goes_and_that_of_others_stays(
    installation, tmp_path, monkeypatch
) -> None:
    memory = tmp_path / "memory"
    monkeypatch.setattr(server, "SHARED_MEMORY", memory)
    server.remove_shared_memory(installation.home)  # a machine without it
    memory.mkdir()
    other = replace(installation, home=tmp_path / "other")
    endpoints = (Endpoint(grpc_port=1), Endpoint(grpc_port=2))
    own = [
        memory / f"{server._shared_memory_prefix(home, each)}x"
        for home in (installation, other)
        for each in endpoints
    ]
    for region in (*own, memory / "millrace"):
        region.touch()
    server.clean_up(installation, endpoints[0])
    assert set(memory.iterdir()) == {*own[1:], memory / "millrace"}
    server.remove_shared_memory(installation.home)
    assert set(memory.iterdir()) == {*own[2:], memory / "millrace"}


def test_no_wheel_names_the_setting_for_an_external_server(monkeypatch) -> None:
    monkeypatch.setattr(backend_directory, "find_spec", lambda _: None)
    with pytest.raises(WorkError, match="MILLRACE_TRITON"):
        backend_directory.find_server()
