"""The folder of what is the same for every home of a user on this machine, and can be made anew."""

import os
from pathlib import Path


def machine_cache() -> Path:
    """Return the folder, `$XDG_CACHE_HOME/millrace` or `~/.cache/millrace`; it may not exist yet.

    It is safe to delete. It keeps an empty database of MLflow and of Prefect, the figures of the
    machine and the counts of networks.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"
