"""`python -m millrace.models.registry.evidence_check FOLDER`: read what lies beside a model.

Run on what was fetched before anything else reads it, in a process with limits on time and memory:
a file that is within the limits of `models/common/bounded_files.py` and still takes too long, or
too much, ends here and not in a release.
"""

import sys
from pathlib import Path

import yaml

from millrace.models.common.bounded_files import (
    YAML_BYTES,
    bounded_arrays,
    bounded_json,
    bounded_text,
    bounded_yaml,
)
from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

SECONDS = 60.0
MEMORY = 4 << 30
"""Of address space; of what there are limits for, the largest JSON takes 1.5 GiB."""


def require_readable(folder: Path, what: str) -> None:
    """Read the evidence in a folder in a process of its own.

    Args:
        folder: with the files.
        what: whose they are.

    Raises:
        InputError: a file cannot be read, or not within the limits.
        TransientError: the process was killed.
    """
    limits = Limits(SECONDS, MEMORY)
    try:
        run_in_subprocess(
            "millrace.models.registry.evidence_check", [folder], limits, what="reading it"
        )
    except TransientError:
        raise
    except WorkError as error:
        raise InputError(
            f"the evidence of {what} cannot be read",
            seen=error.what,
            valid="files as `millrace run` registers them",
            hint="register the model again",
        ) from error


def check(folder: Path) -> None:
    """Read every file of the evidence.

    Raises:
        ValueError, OSError: one cannot be read.
    """
    for file in sorted(folder.iterdir()):
        try:
            if file.suffix == ".json":
                bounded_json(bounded_text(file))
            elif file.suffix == ".yaml":
                bounded_yaml(bounded_text(file, YAML_BYTES))
            elif file.suffix == ".npz":
                bounded_arrays(file)
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"{file.name}: {' '.join(str(error).split())}") from error


def main() -> None:
    """Check the folder that is named."""
    check(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
