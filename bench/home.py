"""An installation of the benchmark's own, embedded, for as long as it runs."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.models.common.installation import Installation


@contextmanager
def own_home() -> Iterator[Installation]:
    """Give a fresh `MILLRACE_HOME`, whatever services the environment names.

    To be entered before Ray, MLflow or Prefect is imported; the process keeps the settings.
    """
    from millrace.flows import environment, settings

    for name in settings.variables():
        os.environ.pop(name, None)
    # Prefect's embedded server may still write while it is stopped at the end of this process.
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as home:
        os.environ["MILLRACE_HOME"] = str(Path(home).resolve())
        yield environment.apply(settings.load()).places()
