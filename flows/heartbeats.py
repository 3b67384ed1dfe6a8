"""Leaves out the heartbeats that Prefect sends for a running flow.

Prefect sends one every three minutes, from a thread that sleeps a second at a time. At the end of
a flow it waits for this thread: half a second on average. Heartbeats serve automations that a user
adds to a Prefect server, to find runs whose process is gone. Millrace finds these runs on its own
server without them (`millrace.flows.deployments.left_flow_runs`).
"""

from typing import Any

from prefect.settings import get_current_settings

from millrace.flows import settings


def leave_out_heartbeats(flow: Any, flow_run: Any, state: Any) -> None:
    """Leave out the heartbeats of a flow run: a hook for `on_running`, in its process.

    They stay on a Prefect server that the user named by `PREFECT_API_URL`, and where the user has
    set `PREFECT_FLOWS_HEARTBEAT_FREQUENCY`.
    """
    del flow, flow_run, state
    of_flows = get_current_settings().flows
    is_chosen = "heartbeat_frequency" in of_flows.model_fields_set
    if not is_chosen and settings.load().prefect_api_url is None:
        of_flows.heartbeat_frequency = None  # which no variable can say
