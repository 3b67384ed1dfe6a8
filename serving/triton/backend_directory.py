"""The Triton binary of the nvidia-pytriton wheel, and a backend directory made for it.

The wheel holds a real `tritonserver` and the python backend, without the stub of the running Python
where that backend looks for it, and no other backend. So a directory of ours gets both, and the
Python-based backends of `serving/triton/backends` beside them.
"""

import hashlib
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millrace.models.common import language_generation
from millrace.models.common.errors import WorkError

OURS = Path(__file__).with_name("backends")
SHARED = Path(language_generation.__file__)
"""What the backend of language models has a copy of."""


@dataclass(frozen=True)
class Server:
    """The parts of the wheel that are needed to run Triton.

    Attributes:
        binary: the `tritonserver` executable.
        python_backend: folder of `libtriton_python.so`.
        stub: the stub process for the running version of Python.
        libraries: folder of the shared libraries of the binary.
    """

    binary: Path
    python_backend: Path
    stub: Path
    libraries: Path


def find_server() -> Server:
    """Find Triton in this environment, without importing pytriton.

    Raises:
        WorkError: the wheel is not installed, or has no stub for this Python.
    """
    spec = find_spec("pytriton")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec is None or spec.origin is None:
        raise _missing("the package nvidia-pytriton is not installed")
    package = Path(spec.origin).parent
    server = Server(
        binary=package / "tritonserver" / "bin" / "tritonserver",
        python_backend=package / "tritonserver" / "backends" / "python",
        stub=package / "tritonserver/python_backend_stubs" / version / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    for part in (server.binary, server.python_backend, server.stub, server.libraries):
        if not part.exists():
            raise _missing(f"{part} does not exist")
    return server


def prepare_backends(home: Path) -> Path:
    """Make the backend directory below `home` if it is not there, and return it.

    Its name tells its contents, so a running server's files are never replaced: an upgrade makes
    another directory.

    Raises:
        WorkError: no Triton here, or `home` cannot be written.
    """
    server = find_server()
    target = home / "backends" / _tag(server)
    if target.exists():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
        shutil.copytree(server.python_backend, work / "python", ignore=_compiled)
        shutil.copy2(server.stub, work / "python")
        shutil.copytree(OURS, work, ignore=_compiled, dirs_exist_ok=True)
        _give_sessions(work / "onnxruntime", work / "text_onnxruntime")
        shutil.copy2(SHARED, work / "openvino_genai")
        _publish(work, target)
    except OSError as error:
        raise WorkError(
            f"Triton's backends cannot be copied to {target}",
            seen=error.strerror or error,
            hint="check the free space and the permissions of MILLRACE_HOME",
        ) from error
    return target


def python_environment() -> dict[str, str]:
    """Return the variables by which the stub processes find this Python and its packages."""
    libraries = (sysconfig.get_config_var("LIBDIR"), str(find_server().libraries))
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join(str(folder) for folder in libraries if folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


_compiled = shutil.ignore_patterns("__pycache__", "__init__.py")


def _give_sessions(source: Path, target: Path) -> None:
    """Copy the backend that another builds on beside it: each is a folder that can go elsewhere."""
    for file in source.glob("*.py"):
        shutil.copy2(file, target / ("text_session.py" if file.name == "model.py" else file.name))


def _publish(work: Path, target: Path) -> None:
    try:
        work.rename(target)
    except OSError:
        shutil.rmtree(work)
        if not target.exists():  # else another process was first, with the same contents
            raise


def _tag(server: Server) -> str:
    """Name the contents: the wheel's files by path, size and time, ours by what they say."""
    digest = hashlib.sha256()
    for part in (server.stub, server.python_backend / "libtriton_python.so"):
        status = part.stat()
        digest.update(f"{part}:{status.st_size}:{status.st_mtime_ns}".encode())
    for file in (SHARED, *sorted(OURS.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _missing(seen: str) -> WorkError:
    return WorkError(
        "there is no Triton server to start on this machine",
        seen=seen,
        valid="Linux x86-64 with the wheel nvidia-pytriton, CPython 3.8 to 3.13",
        hint="set MILLRACE_TRITON to the endpoints of a Triton server that runs elsewhere",
    )
