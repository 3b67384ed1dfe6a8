"""Flow: remove what the retention of pipeline files no longer keeps; `up` runs it every week."""

from functools import partial
from pathlib import Path

from prefect import flow

from millrace.flows import run_state, settings, tool_variables
from millrace.flows.deployments.left_flow_runs import record_flow_run
from millrace.flows.run_state import wait_for_start
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.registry.tracking import check_reachable
from millrace.tasks.progress import log
from millrace.tasks.retention.clean import clean
from millrace.tasks.retention.cleaned import Cleaned


@flow(name="clean_up", retries=0, persist_result=False, validate_parameters=False)
def clean_up(pipeline_files: list[str] | None = None) -> list[Cleaned]:
    """Remove what the retention of pipeline files no longer keeps.

    Args:
        pipeline_files: paths of the files; None: the home's pipeline files.
    """
    installation = tool_variables.apply(settings.load()).installation()
    uri = installation.tracking_uri
    wait_for_start(installation.run, uri, partial(check_reachable, uri))
    files = [Path(file) for file in pipeline_files or ()] or installation.pipeline_files
    pipelines = [load_pipeline(file) for file in files]
    found = []
    with record_flow_run(installation.run):
        for each in clean(pipelines, installation, run_state.service_logs(installation.run)):
            log.info("%s", each)
            found.append(each)
    return found
