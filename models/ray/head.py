"""The head node of a Ray on this machine.

`ray.init` starts a Ray that ends with its process, together with processes that nothing here needs:
a dashboard, a monitor of the autoscaler and a monitor of the logs, three Python programs of 100 MB.
This module starts what is left: the GCS, the raylet and the raylet's two agents. They listen on
loopback and ask for a token, by the variables of `millrace.flows.tool_variables`.

The kernel ends them with this process (PR_SET_PDEATHSIG), also after SIGKILL.
"""

from pathlib import Path
from typing import Any

from ray._private.node import Node
from ray._private.parameter import RayParams

from millrace.models.common.ray_folder import ray_folder
from millrace.models.ray import worker

GCS_SECONDS = 10
"""How long processes wait for a GCS that is gone, before they end.

No other one is started. By Ray's default a command would end a minute after its raylet was killed.
"""


class HeadNode(Node):  # type: ignore[misc, unused-ignore]
    """A head node without a dashboard."""

    @property
    def raylet_pid(self) -> int:
        """The process id of the raylet."""
        return int(self.all_processes["raylet"][0].process.pid)

    def dead_names(self) -> list[str]:
        """Return the names of its processes that died."""
        return [name for name, _ in self.dead_processes()]  # type: ignore[no-untyped-call]

    def start_api_server(self, *, include_dashboard: Any, raise_on_failure: Any) -> None:
        """Start nothing."""


def start_head(cpus: int) -> HeadNode:
    """Start a head node, and return it when drivers may connect.

    Workers start when a task or an actor needs one, never in advance: a worker that is started in
    advance belongs to no job, so it has no job's environment.

    Args:
        cpus: the number of logical CPUs, which workers and actors reserve.

    Raises:
        WorkError: the folder for its sockets and logs cannot be created.
    """
    options: dict[str, Any] = {  # Ray's own types of some of them are wrong
        "num_cpus": cpus,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
        "temp_dir": str(ray_folder()),
        "worker_path": str(Path(worker.__file__)),
        "_system_config": {
            "prestart_worker_first_driver": False,
            "gcs_rpc_server_reconnect_timeout_s": GCS_SECONDS,
        },
    }
    return HeadNode(RayParams(**options), head=True, shutdown_at_exit=False, spawn_reaper=True)
