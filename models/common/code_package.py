"""The code of Millrace and a pipeline file as one folder, to run on machines that have neither."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("export", "flows", "models", "serving", "tasks")
PIPELINE = "pipeline.yaml"


def fill(folder: Path, pipeline_file: Path) -> None:
    """Copy the code, and a pipeline file as `PIPELINE`, into a folder.

    The modules beside the file stay where they are: what they made is in the registered version.

    Args:
        folder: that exists.
        pipeline_file: the YAML file.
    """
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "millrace" / name, ignore=ignored)
    shutil.copyfile(pipeline_file, folder / PIPELINE)
