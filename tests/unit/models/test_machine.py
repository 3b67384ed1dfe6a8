from pathlib import Path

import psutil
import pytest

from millrace.models.common import hardware
from millrace.models.common.hardware import Machine, memory_bytes, this_machine

XEON = """processor : 0
model name : A Xeon
flags : fpu avx2 avx512f avx512_vnni amx_int8 other
processor : 1
model name : A Xeon
flags : fpu avx2
"""
GRAVITON = "processor : 0\nFeatures : fp asimddp i8mm bf16\n"


def test_the_flags_that_choose_kernels_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(XEON)
    found = this_machine()
    assert found.processor == "A Xeon"
    assert found.flags == ("avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert found.cores >= 1
    (tmp_path / "cpuinfo").write_text(GRAVITON)
    assert this_machine().flags == ("asimddp", "i8mm", "bf16")


def test_a_system_without_proc_is_a_machine_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CPUINFO", tmp_path / "none")
    assert this_machine().flags == ()
    assert this_machine().processor


def test_machines_of_a_kind_share_their_kernels_whatever_their_names() -> None:
    one = Machine("A Xeon", 2, ("avx2", "avx512_vnni"))
    assert one.kind == Machine("Another", 64, ("avx2", "avx512_vnni")).kind
    assert one.kind != Machine("An EPYC", 2, ("avx2",)).kind
    assert one.kind != Machine("A Xeon", 2, ("avx2", "avx512_vnni"), "NVIDIA H200").kind
    assert str(one).startswith("A Xeon (")


def test_what_a_process_starts_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, own = iter([10.0, 11.5]), iter([2.0, 3.0])
    monkeypatch.setattr(hardware, "_busy_seconds", lambda: next(busy))
    monkeypatch.setattr(hardware, "_own_seconds", lambda: next(own))
    monkeypatch.setattr(hardware.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(hardware.time, "sleep", lambda _: None)
    assert hardware.measure_other_load(1.0) == 0.25


def test_the_share_of_others_is_a_share() -> None:
    assert 0 <= hardware.measure_other_load(0.1) <= 1


@pytest.mark.parametrize(
    ("cgroups", "file", "value", "limit"),
    [
        ("0::/a/b\n", "a/b/memory.max", "1000\n", 1000),
        ("0::/a/b\n", "a/memory.max", "1000\n", 1000),  # of the one above
        ("0::/a/b\n", "memory.max", "1000\n", 1000),  # as a container sees its own
        ("0::/a/b\n", "a/memory.max", "max\n", None),
        ("3:cpu,memory:/a\n", "memory/a/memory.limit_in_bytes", "1000\n", 1000),
        ("3:cpu,memory:/a\n", "memory/a/memory.limit_in_bytes", f"{1 << 62}\n", None),
        ("", "memory.max", "1000\n", None),
    ],
)
def test_memory_is_what_a_cgroup_leaves(
    tmp_path: Path, cgroups: str, file: str, value: str, limit: int | None
) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text(cgroups)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(value)
    assert memory_bytes(proc, root) == (limit or psutil.virtual_memory().total)


def test_without_cgroups_memory_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "none") == psutil.virtual_memory().total
