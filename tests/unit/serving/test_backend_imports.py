import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from millrace.serving.triton import backend_directory

BACKENDS = sorted(path.parent for path in backend_directory.BACKENDS.glob("*/model.py"))
ELSEWHERE = {"triton_python_backend_utils", "tensorrt_libs"}
"""Of Triton, and of a machine that has TensorRT."""
COPIED = {file.stem for _, file in backend_directory._shared_files()} | {"text_session"}
"""What `prepare_backends` puts beside a backend's own files."""


def imported(file: Path) -> set[str]:
    """Return the top names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("folder", BACKENDS, ids=lambda folder: folder.name)
def test_a_backend_imports_its_siblings_and_what_is_installed(folder: Path) -> None:
    siblings = {file.stem for file in folder.glob("*.py")} | COPIED
    ours = {name for file in folder.glob("*.py") for name in imported(file)} - ELSEWHERE
    installed = {name for name in ours if name in sys.stdlib_module_names or _is_package(name)}
    assert ours - installed <= siblings


def _is_package(name: str) -> bool:
    return find_spec(name) is not None
