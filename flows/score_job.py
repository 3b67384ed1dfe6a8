"""The program of a batch job on a Ray cluster: `python -m millrace.flows.score_job REQUEST`.

The job does the work of the step `score_rows` on the cluster's head node, without Prefect. The flow
that submitted the job follows the job's log and reads the outcome from it
(`serving/batch/cluster/job_log.py`).
"""

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from millrace.flows import settings, tool_variables
from millrace.models.common.errors import MillraceError
from millrace.models.data.snapshots import PREDICTIONS
from millrace.serving.batch.cluster.cluster_job import JobRequest
from millrace.serving.batch.cluster.job_log import format_outcome, log_to_stdout

TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the job that the command line names, with the exit codes of `millrace score`."""
    # Ray ends a job by SIGTERM and kills it 3 s later; in between the MLflow run is marked ended.
    signal.signal(signal.SIGTERM, _exit)
    log_to_stdout()
    request, code = JobRequest.read(sys.argv[1]), 0
    try:
        outcome = _score(request)
    except MillraceError as error:
        outcome, code = {"error": error.as_dict()}, error.exit_code
    sys.stdout.write(format_outcome(request.submission, outcome) + "\n")
    sys.exit(code)


def _score(request: JobRequest) -> dict[str, Any]:
    """Score the rows of a request, and return the report and the events for Prefect."""
    from millrace.models.config.pipeline_file import load_pipeline
    from millrace.serving.batch.cluster.shared_storage import take_proof

    chosen = settings.load()
    pipeline = load_pipeline(Path(request.file))
    take_proof(chosen.installation().table(PREDICTIONS, pipeline.name), request.submission)
    installation = tool_variables.apply(chosen).installation()
    # Imported after `apply`, because these modules read the environment.
    from millrace.models.ray.cluster import connect_to_ray
    from millrace.tasks.alerts import Event
    from millrace.tasks.score import RunReporter, scored

    events: list[Event] = []
    reporter = RunReporter(request.tags, events.append)
    with connect_to_ray(installation.ray_address, pipeline.batch.num_actors or 1):
        report = scored(
            pipeline, installation, request.source, request.date, reporter, request.version
        )
    return {"report": asdict(report), "events": [asdict(event) for event in events]}


def _exit(signum: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
