"""Names and tags by which a person finds a run: what was done, which model, which code."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_NAMED = 3


def release_name(versions: Mapping[str, int | None]) -> str:
    """Return the name of a release, for example `release digits 3`."""
    named = [f"{m} {v}" if v is not None else m for m, v in sorted(versions.items())]
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    return f"release {', '.join(named[:MOST_NAMED])}{more}".rstrip()


def score_name(model: str, days: Sequence[str]) -> str:
    """Return the name of a batch job, for example `score digits 2026-11-22`.

    A job of several days is named by its first and last day.
    """
    return f"score {model} {' to '.join(dict.fromkeys((days[0], days[-1])))}"


def name_run(name: str, *models: str) -> None:
    """Name the current flow run, and add its models as tags; outside of a flow run do nothing.

    If Prefect does not accept the name, the run keeps its name and does not fail.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException
    from prefect.runtime import flow_run

    from millrace.tasks.progress import log

    if not flow_run.id:
        return
    tags = list(dict.fromkeys((*flow_run.tags, *models)))
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=tags)
    except (PrefectException, httpx.HTTPError, OSError) as error:
        log.warning("could not name the flow run %s: %s", name, str(error).split("\n")[0])


def code_version(folder: Path) -> dict[str, str]:
    """Return MLflow tags: the git commit of a folder, and whether it has uncommitted changes.

    Empty if there is no commit.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = git("status", "--porcelain")
    return {"mlflow.source.git.commit": commit, "millrace.git.dirty": str(bool(changed)).lower()}
