import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from millrace.models.common import hardware as module
from millrace.models.common.hardware import (
    EngineFingerprint,
    Gpu,
    find_tensorrt,
    parse_gpu,
    this_fingerprint,
    this_gpu,
)

H200 = Gpu("NVIDIA H200", "9.0", "570.86.10")
TIES = EngineFingerprint(H200, "11.4.0.106", "13")


def install(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]) -> None:
    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(module, "version", version)


def test_the_first_gpu_that_is_listed_is_read() -> None:
    assert parse_gpu("NVIDIA H200, 9.0, 570.86.10\nTesla T4, 7.5, 570.86.10\n") == H200


@pytest.mark.parametrize("listed", ["", "No devices were found\n", "a, b\n", "a, , c\n"])
def test_what_is_no_list_of_gpus_is_none(listed: str) -> None:
    assert parse_gpu(listed) is None


@pytest.mark.parametrize("command", [("no-such-program",), ("false",), ("sleep", "9")])
def test_a_machine_that_cannot_tell_has_no_gpu(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "QUERY", command)
    monkeypatch.setattr(module, "QUERY_SECONDS", 0.2)
    assert this_gpu.__wrapped__() is None


def test_a_gpu_is_found_by_what_nvidia_smi_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY", ("echo", "NVIDIA H200, 9.0, 570.86.10"))
    assert this_gpu.__wrapped__() == H200


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({}, None),
        ({"tensorrt": "11.4", "tensorrt-cu13": "11.4"}, ("11.4", "13")),
        ({"tensorrt-cu12": "10.9"}, ("10.9", "12")),
        ({"tensorrt": "10.3"}, ("10.3", "")),
    ],
)
def test_tensorrt_is_known_by_its_package(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], found: tuple[str, str] | None
) -> None:
    install(monkeypatch, installed)
    assert find_tensorrt() == found


def test_ties_name_all_that_an_engine_needs() -> None:
    assert str(TIES) == (
        "NVIDIA H200 (compute capability 9.0), driver 570.86.10, TensorRT 11.4.0.106, CUDA 13"
    )
    assert TIES.slug == "NVIDIA-H200.sm90.driver-570.86.10.tensorrt-11.4.0.106.cuda-13"


def test_a_slug_is_a_part_of_a_files_name_whatever_the_gpu_is_called() -> None:
    odd = replace(TIES, gpu=Gpu("A/B (c) d", "7.5", "1"), cuda="")
    assert re.fullmatch(r"[A-Za-z0-9.-]+", odd.slug)
    assert "cuda" not in odd.slug


@pytest.mark.parametrize(
    "other",
    [
        replace(TIES, gpu=replace(H200, name="Tesla T4")),
        replace(TIES, gpu=replace(H200, compute_capability="7.5")),
        replace(TIES, gpu=replace(H200, driver="580.1")),
        replace(TIES, tensorrt="10.9"),
        replace(TIES, cuda="12"),
    ],
)
def test_whatever_differs_is_another_place_in_words_and_in_names(other: EngineFingerprint) -> None:
    assert str(other) != str(TIES)
    assert other.slug != TIES.slug


def test_without_a_gpu_nothing_is_tied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "this_gpu", lambda: None)
    install(monkeypatch, {"tensorrt-cu13": "11.4"})
    assert this_fingerprint() is None


def test_a_gpu_with_tensorrt_ties_an_engine_to_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "this_gpu", lambda: H200)
    install(monkeypatch, {"tensorrt-cu13": "11.4.0.106"})
    assert this_fingerprint() == TIES
