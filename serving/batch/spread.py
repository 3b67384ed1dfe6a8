"""What Ray Data is told where a job is spread over a cluster.

The embedded Ray has two logical CPUs more than actors hold. On a cluster actors may hold all there
are, and after the death of a node more than are left. Then nothing may wait for a CPU that only an
actor could give back, or the job stands still for ever: so the tasks that read and write hold none.
"""

from typing import Any


def reading(at_most: int) -> dict[str, Any]:
    """Return options of the tasks that read.

    Args:
        at_most: at a time.
    """
    return {"num_cpus": 0, "concurrency": at_most}


def writing(at_most: int) -> dict[str, Any]:
    """Return options of the tasks that write; as for `reading`."""
    return {"ray_remote_args": {"num_cpus": 0}, "concurrency": at_most}
