"""Runs a Prefect flow from a command, and reports its start, which is silent and may take long.

Without `millrace up` a temporary server of Prefect starts first, which migrates its database.
"""

from contextlib import ExitStack
from typing import ParamSpec, TypeVar

from prefect import Flow

from millrace.flows.services.temporary_prefect import wait_for_server
from millrace.models.common.slow_step import report_while

P = ParamSpec("P")
R = TypeVar("R")


def run_flow(flow: Flow[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a flow, with a line every few seconds until it begins to run.

    Args:
        flow: the flow.
        args: positional arguments of the flow.
        kwargs: keyword arguments of the flow.

    Returns:
        What the flow returns; what it raises is raised.
    """
    start = ExitStack()

    def end_start(flow: object, flow_run: object, state: object) -> None:
        del flow, flow_run, state
        start.close()

    with start:
        start.enter_context(report_while("starting Prefect's flow"))
        wait_for_server()
        started = flow.with_options(on_running=[end_start, *flow.on_running_hooks])
        return started(*args, **kwargs)
