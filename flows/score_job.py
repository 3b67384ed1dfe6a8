"""The program of a batch job on a Ray cluster: `python -m millrace.flows.score_job REQUEST`.

It does what the step `score_rows` does, on the head of the cluster and without Prefect; the flow
that submitted it follows its log, and is told the outcome there
(`serving/batch/cluster/job_log.py`).
"""

import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from millrace.flows import environment, settings
from millrace.models.common.errors import MillraceError
from millrace.serving.batch.cluster.cluster_job import JobRequest
from millrace.serving.batch.cluster.job_log import format_outcome, log_to_stdout

TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the job of the command line, and end with the exit code of `millrace score`."""
    # Ray ends a job so, and kills it 3 s later: time to say in MLflow that the run was ended.
    signal.signal(signal.SIGTERM, _end)
    log_to_stdout()
    errand, code = JobRequest.read(sys.argv[1]), 0
    try:
        outcome = _done(errand)
    except MillraceError as error:
        outcome, code = {"error": error.as_dict()}, error.exit_code
    sys.stdout.write(format_outcome(errand.submission, outcome) + "\n")
    sys.exit(code)


def _done(errand: JobRequest) -> dict[str, Any]:
    """Score, and return the report and what Prefect is to hear of."""
    from millrace.models.config.pipeline_file import load_pipeline
    from millrace.serving.batch.cluster.shared_storage import take_proof

    chosen = settings.load()
    pipeline = load_pipeline(Path(errand.file))
    take_proof(chosen.places().table("predictions", pipeline.name), errand.submission)
    places = environment.apply(chosen).places()
    # After the environment was set, which these read.
    from millrace.models.common.ray_cluster import connected
    from millrace.tasks.batch.drift_report import Event
    from millrace.tasks.score import RunReporter, scored

    events: list[Event] = []
    telling = RunReporter(errand.tags, events.append)
    with connected(places.ray_address, pipeline.batch.num_actors or 1):
        report = scored(pipeline, places, errand.source, errand.date, telling, errand.version)
    return {"report": asdict(report), "events": [asdict(event) for event in events]}


def _end(signum: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
