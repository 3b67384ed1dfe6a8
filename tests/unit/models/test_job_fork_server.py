"""Forks of a process that has imported Ray."""

import os
import subprocess
import sys

import pytest

from millrace.models.ray.fork_imports import OF_RAY_DATA, OF_RAY_TRAIN
from millrace.models.ray.job_fork_server import have_own_ids

DRAW = """
import importlib, sys
from contextlib import nullcontext
from millrace.models.ray.job_fork_server import draw_in_forks, have_own_ids, ids_from_kernel
with ids_from_kernel() if sys.argv[1] == "kernel" else nullcontext():
    for module in sys.argv[2:]:
        importlib.import_module(module)
print(have_own_ids(draw_in_forks()))
"""


@pytest.mark.parametrize(
    ("source", "modules", "own"),
    [
        ("kernel", OF_RAY_TRAIN, "True"),
        ("kernel", OF_RAY_DATA, "True"),
        ("ray", OF_RAY_TRAIN, "False"),
    ],
    ids=["train", "data", "not from the kernel"],
)
def test_forks_draw_their_own_ids_only_if_ray_drew_none_before(
    source: str, modules: tuple[str, ...], own: str
) -> None:
    """The last case shows that the others can fail."""
    command = [sys.executable, "-c", DRAW, source, *modules]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "RAY_JOB_ID": "01000000"}
    )
    assert done.stdout.strip() == own, done.stderr


def test_ids_that_are_drawn_twice_or_not_at_all_are_noticed() -> None:
    assert have_own_ids([["a", "b"], ["c", "d"]])
    assert not have_own_ids([["a", "b"], ["a", "c"]])
    assert not have_own_ids([["a", "a"], ["b", "c"]])
    assert not have_own_ids([["a", "b"], []])
