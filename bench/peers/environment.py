"""The environment of the peers: their packages, apart from Millrace's, installed once from PyPI."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from millrace.models.common.errors import WorkError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FOLDER = Path(__file__).parents[1] / ".peers"
STAMP = "installed"
QUIET = ("--quiet", "--disable-pip-version-check", "--retries", "2")


def install_peers(folder: Path = FOLDER) -> Path:
    """Return the Python that has the peers; they are installed if they are missing.

    The requirements are complete, so pip installs exactly these packages.

    Raises:
        WorkError: they cannot be installed.
    """
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    sys.stderr.write(f"installing LitServe, BentoML, MLflow and Ray Serve into {folder} (once)\n")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    install = [*("-m", "pip", "install", *QUIET), "--no-deps", "--requirement", str(REQUIREMENTS)]
    _run([str(python), *install])
    stamp.write_text(wanted)
    return python


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise WorkError(
            "the environment of the other servers cannot be made",
            seen="\n".join(done.stderr.splitlines()[-4:]),
            valid=f"the packages of {REQUIREMENTS.name}, from PyPI",
            hint="try again where there is a network",
        )
