"""`make soak`: random histories of a source's files; what is ingested equals a full reading.

    python -m tests.chaos.histories [HISTORIES]

After each of six steps, in which files are added, changed, removed, renamed or touched, digest,
rows, statistics, bad rows and keys are those of a home that reads everything again.
"""

import sys
import tempfile
from pathlib import Path

import pytest

from tests.unit.models.test_read_changes import WRITERS, run_history, shrink_groups


def main() -> None:
    """Run the histories, and print a line for every twentieth."""
    count = int((*sys.argv[1:], "200")[0])
    endings = sorted(WRITERS)
    with pytest.MonkeyPatch.context() as patch:
        shrink_groups(patch)
        for number in range(count):
            with tempfile.TemporaryDirectory() as folder:
                run_history(Path(folder), endings[number % len(endings)], 1_000 + number)
            if (number + 1) % 20 == 0:
                sys.stdout.write(f"{number + 1} histories, each as a full reading\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
