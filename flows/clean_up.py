"""Flow: remove what the retention of pipeline files no longer keeps; `up` runs it every week."""

import logging
from functools import partial
from pathlib import Path

from prefect import flow

from millrace.flows import settings, tool_variables
from millrace.flows.deployments.left_flow_runs import record_flow_run
from millrace.flows.heartbeats import leave_out_heartbeats
from millrace.flows.run_state import wait_for_start
from millrace.models.common.errors import WorkError, list_names
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.registry.tracking import check_reachable
from millrace.tasks.alerts import alert_failure
from millrace.tasks.progress import log
from millrace.tasks.retention.clean import clean
from millrace.tasks.retention.cleaned import Cleaned


@flow(
    name="clean_up",
    retries=0,
    persist_result=False,
    validate_parameters=False,
    on_running=[leave_out_heartbeats],
    on_failure=[alert_failure],
    on_crashed=[alert_failure],
)
def clean_up(pipeline_files: list[str] | None = None) -> list[Cleaned]:
    """Remove what the retention of pipeline files no longer keeps.

    Args:
        pipeline_files: paths of the files; None: the home's pipeline files.

    Raises:
        InputError: one of the given files cannot be read.
        TransientError: MLflow cannot be reached.
        WorkError: something was not removed; the rest was.
    """
    installation = tool_variables.apply(settings.load()).installation()
    uri = installation.tracking_uri
    wait_for_start(installation.run, uri, partial(check_reachable, uri))
    pipelines = [load_pipeline(Path(file)) for file in pipeline_files or ()]
    found = []
    with record_flow_run(installation.run):
        for each in clean(pipelines, installation):
            log.log(logging.WARNING if each.skipped else logging.INFO, "%s", each)
            found.append(each)
    if skipped := [f"{each.subject}: {reason}" for each in found for reason in each.skipped]:
        raise WorkError(
            f"{len(skipped)} things could not be cleaned; the rest was",
            seen=list_names(skipped, 5),
            hint="see the log of this flow run; the next `millrace clean` tries again",
        )
    return found
