"""How much memory a command and all its processes take, sampled while they run.

The measure is the proportional set size (PSS): a page that several processes map, as those of Ray's
object store and of libraries, counts once in the sum. It needs Linux.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
SECONDS = 0.5
NAME_LENGTH = 48


@dataclass(frozen=True)
class Sample:
    """The memory of the processes at one moment.

    Attributes:
        processes: PSS in bytes, by process id and name.
        shared: the part of the sum that is shared memory, as Ray's object store.
    """

    processes: dict[str, int] = field(default_factory=dict)
    shared: int = 0

    @property
    def total(self) -> int:
        """PSS of all processes in bytes."""
        return sum(self.processes.values())


class MemorySampler:
    """Samples the memory of a process, its descendants and its session, in a thread.

    Attributes:
        step: what the processes do now, which the caller sets.
        peaks: for each step the sample with the largest sum so far.
    """

    def __init__(self, pid: int, seconds: float = SECONDS) -> None:
        self.step = "start"
        self.peaks: dict[str, Sample] = {}
        self._pid, self._seconds = pid, seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    @contextmanager
    def running(self) -> Iterator["MemorySampler"]:
        """Sample while the block runs."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while True:
            step, sample = self.step, sample_memory(processes_of(self._pid))
            if step not in self.peaks or sample.total > self.peaks[step].total:
                self.peaks[step] = sample
            if self._ended.wait(self._seconds):
                return


def sample_memory(pids: set[int], proc: Path = PROC) -> Sample:
    """Return the memory of processes; one that has ended is left out."""
    processes, shared = {}, 0
    for pid in sorted(pids):
        with suppress(OSError):
            pss, of_it_shared = pss_of(pid, proc)
            processes[f"{pid} {_name(proc / str(pid))}"] = pss
            shared += of_it_shared
    return Sample(processes, shared)


def pss_of(pid: int, proc: Path = PROC) -> tuple[int, int]:
    """Return the bytes of PSS of a process, and the part of them that is shared memory.

    Raises:
        OSError: the process has ended.
    """
    lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    sizes = dict(line.split()[:2] for line in lines[1:])
    return int(sizes["Pss:"]) * 1024, int(sizes["Pss_Shmem:"]) * 1024


def processes_of(pid: int, proc: Path = PROC) -> set[int]:
    """Return a process, its descendants, and what else is in its session.

    A process whose parent has ended is a child of another process, but stays in the session.
    """
    parents: dict[int, int] = {}
    found = {pid}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                if int(fields[3]) == pid:
                    found.add(int(entry.name))
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _name(folder: Path) -> str:
    """Return what a process says that it is: Ray's workers say what they do."""
    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    plain = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    return " ".join(plain)[:NAME_LENGTH] or (folder / "comm").read_text().strip()
