"""The Triton binary of the nvidia-pytriton wheel, and a backend directory made for it.

The wheel has a real `tritonserver` and the python backend, but no other backend. Its stub process
for the running Python is not where the python backend looks for it. So Millrace makes a directory
with the python backend, the stub, and the Python-based backends of `serving/triton/backends`.
"""

import hashlib
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from millrace.models.common.errors import WorkError

BACKENDS = Path(__file__).with_name("backends")
SHARED_MODULES = "SHARED_MODULES"
"""Variable in a backend's `__init__.py`: the Millrace modules that are copied into its folder."""


@dataclass(frozen=True)
class TritonFiles:
    """The paths in the wheel that are needed to run Triton.

    Attributes:
        binary: the `tritonserver` executable.
        python_backend: the folder with `libtriton_python.so`.
        stub: the executable of the stub process for the running version of Python.
        libraries: the folder with the shared libraries that the binary needs.
    """

    binary: Path
    python_backend: Path
    stub: Path
    libraries: Path


def find_server() -> TritonFiles:
    """Find Triton in this environment, without importing pytriton.

    Raises:
        WorkError: the wheel is not installed, or has no stub for this Python.
    """
    spec = find_spec("pytriton")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if spec is None or spec.origin is None:
        raise _no_server("the package nvidia-pytriton is not installed")
    package = Path(spec.origin).parent
    files = TritonFiles(
        binary=package / "tritonserver" / "bin" / "tritonserver",
        python_backend=package / "tritonserver" / "backends" / "python",
        stub=package / "tritonserver/python_backend_stubs" / version / "triton_python_backend_stub",
        libraries=package.parent / "nvidia_pytriton.libs",
    )
    for part in (files.binary, files.python_backend, files.stub, files.libraries):
        if not part.exists():
            raise _no_server(f"{part} does not exist")
    return files


def prepare_backends(home: Path) -> Path:
    """Make the backend directory below `home` unless it exists, and return its path.

    The directory's name is a digest of its contents. An upgrade makes another directory, so the
    files of a running server are never replaced.

    Raises:
        WorkError: Triton is not installed, or `home` cannot be written.
    """
    files = find_server()
    target = home / "backends" / _hash_contents(files)
    if target.exists():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
        shutil.copytree(files.python_backend, work / "python", ignore=_ignore_compiled)
        shutil.copy2(files.stub, work / "python")
        shutil.copytree(BACKENDS, work, ignore=_ignore_compiled, dirs_exist_ok=True)
        _copy_sessions(work / "onnxruntime", work / "text_onnxruntime")
        for backend, file in _shared_files():
            shutil.copy2(file, work / backend)
        _publish(work, target)
    except OSError as error:
        raise WorkError(
            f"Triton's backends cannot be copied to {target}",
            seen=error.strerror or error,
            hint="check the free space and the permissions of MILLRACE_HOME",
        ) from error
    return target


def python_environment() -> dict[str, str]:
    """Return the environment in which the stub processes find this Python and its packages."""
    libraries = (sysconfig.get_config_var("LIBDIR"), str(find_server().libraries))
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join(str(folder) for folder in libraries if folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


_ignore_compiled = shutil.ignore_patterns("__pycache__", "__init__.py")


def _copy_sessions(source: Path, target: Path) -> None:
    """Copy the modules of a backend into the folder of another backend that imports them.

    Triton loads each backend's folder on its own.
    """
    for file in source.glob("*.py"):
        shutil.copy2(file, target / ("text_session.py" if file.name == "model.py" else file.name))


def _shared_files() -> list[tuple[str, Path]]:
    """Return the Millrace modules to copy: pairs of a backend's name and a module's file."""
    found = []
    for folder in sorted(each for each in BACKENDS.iterdir() if (each / "__init__.py").exists()):
        backend = import_module(f"{__package__}.backends.{folder.name}")
        for name in getattr(backend, SHARED_MODULES, ()):
            spec = find_spec(name)  # not imported: the supervisor needs no numpy
            assert spec is not None, name
            found.append((folder.name, Path(str(spec.origin))))
    return found


def _publish(work: Path, target: Path) -> None:
    try:
        work.rename(target)
    except OSError:
        shutil.rmtree(work)
        if not target.exists():  # another process may have made the same directory
            raise


def _hash_contents(files: TritonFiles) -> str:
    """Return a digest of the wheel's files (path, size, time) and of Millrace's (contents)."""
    digest = hashlib.sha256()
    for part in (files.stub, files.python_backend / "libtriton_python.so"):
        status = part.stat()
        digest.update(f"{part}:{status.st_size}:{status.st_mtime_ns}".encode())
    shared = [file for _, file in _shared_files()]
    for file in (*shared, *sorted(BACKENDS.rglob("*.py"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _no_server(seen: str) -> WorkError:
    return WorkError(
        "there is no usable Triton server on this machine",
        seen=seen,
        valid="Linux x86-64 with the wheel nvidia-pytriton, CPython 3.8 to 3.13",
        hint="set MILLRACE_TRITON to the endpoints of a Triton server on another machine",
    )
