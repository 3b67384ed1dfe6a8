"""Functions of Python's standard library, each with the package that it comes from.

Real text that every machine has: the source of the running Python. `examples/text.yaml` learns to
tell the package of a function by its code.
"""

import ast
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

PACKAGES = ("asyncio", "email", "http", "importlib", "multiprocessing", "unittest", "urllib", "xml")
LEAST, MOST = 3, 60
"""Lines of a function that is taken."""


def functions() -> Iterator[pa.RecordBatch]:
    """Yield one batch for each package: `name`, `code`, `package`."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        rows = [
            {"name": f"{file.relative_to(library).with_suffix('')}:{name}", "code": code}
            for file in sorted((library / package).rglob("*.py"))
            if "test" not in file.parts  # Python 3.11 has unittest's own tests in it
            for name, code in _functions(file)
        ]
        yield pa.RecordBatch.from_pylist([{**row, "package": package} for row in rows])


def _functions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the name, with its line, and the code of every function and method of a module."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = lines[node.lineno - 1 : node.end_lineno]
            if LEAST <= len(taken) <= MOST:
                yield f"{node.lineno}:{node.name}", textwrap.dedent("\n".join(taken))
