"""Which code made a run: tags for MLflow."""

import subprocess
from pathlib import Path


def code_version(folder: Path) -> dict[str, str]:
    """Return MLflow's own tag for the git commit of a folder; empty where there is none."""

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
