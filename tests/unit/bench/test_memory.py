"""Whose memory is sampled, and how it is summed."""

import os
import time
from pathlib import Path

import pytest

from bench.memory import MemorySampler, processes_of, pss_of, sample_memory


def add_process(
    proc: Path, pid: int, parent: int, session: int, pss: int = 0, shared: int = 0
) -> None:
    """Write what /proc says of a process; sizes in KiB."""
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a (name) x) S {parent} {pid} {session} 0 -1")
    (folder / "smaps_rollup").write_text(
        f"5500-7fff ---p 00000000 00:00 0 [rollup]\nRss: 9999 kB\nPss: {pss} kB\n"
        f"Pss_Anon: 1 kB\nPss_Shmem: {shared} kB\n"
    )
    (folder / "cmdline").write_bytes(b"/usr/bin/python\0-m\0work\0")


def test_descendants_and_the_session_belong_to_a_process(tmp_path: Path) -> None:
    (tmp_path / "meminfo").touch()
    add_process(tmp_path, 10, parent=1, session=10)
    add_process(tmp_path, 11, parent=10, session=10)
    add_process(tmp_path, 12, parent=11, session=12)  # a session of its own
    add_process(tmp_path, 13, parent=1, session=10)  # its parent has ended
    add_process(tmp_path, 14, parent=1, session=1)
    assert processes_of(10, tmp_path) == {10, 11, 12, 13}


def test_memory_is_summed_with_its_shared_part(tmp_path: Path) -> None:
    add_process(tmp_path, 10, parent=1, session=10, pss=300, shared=100)
    add_process(tmp_path, 11, parent=10, session=10, pss=50, shared=20)
    assert pss_of(10, tmp_path) == (300 * 1024, 100 * 1024)
    sample = sample_memory({10, 11, 12}, tmp_path)
    assert sample.processes == {"10 python work": 300 * 1024, "11 python work": 50 * 1024}
    assert (sample.total, sample.shared) == (350 * 1024, 120 * 1024)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="needs Linux")
def test_each_step_has_its_own_peak() -> None:
    sampler = MemorySampler(os.getpid(), 0.001)
    with sampler.running():
        while not sampler.peaks:
            time.sleep(0.001)
        before, sampler.step = sampler.peaks["start"].total, "large"
        large = bytearray(os.urandom(1)) * 64_000_000
        while "large" not in sampler.peaks or sampler.peaks["large"].total < before + len(large):
            time.sleep(0.001)
    assert sampler.peaks["start"].total < sampler.peaks["large"].total
