"""Killing the processes of Triton's Python-based backends."""

import psutil


def kill_backends(folder: str) -> int:
    """Kill every process that serves a model of this folder; return how many there were."""
    stubs = [each for each in psutil.process_iter(["cmdline"]) if _serves(each, folder)]
    for stub in stubs:
        stub.kill()
    return len(stubs)


def _serves(process: psutil.Process, folder: str) -> bool:
    words = process.info["cmdline"] or [""]
    return "stub" in words[0] and any(folder in word for word in words)
