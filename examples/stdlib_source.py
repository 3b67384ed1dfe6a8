"""Python's standard library as data for language models: whole modules, and docstrings to write.

Real text that every machine has: the source of the running Python.
"""

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
LEFT_OUT = {
    *("test", "tests", "idlelib", "idle_test", "turtledemo"),  # no library
    *("encodings", "pydoc_data"),  # tables
    *("site-packages", "dist-packages", "__pycache__"),  # of others
}
"""Folders, and the files beginning with these words: `_sysconfigdata_…` differs by machine."""
GENERATED = ("_sysconfigdata", "config-")
MOST = 250_000
"""Bytes of a module that is taken."""
ROWS = 64
"""Modules of a batch."""


def modules() -> Iterator[pa.RecordBatch]:
    """Yield `path` and `text` of every module, in the order of their paths."""
    files = _files()
    for start in range(0, len(files), ROWS):
        rows = [
            {"path": _path(file), "text": file.read_text(encoding="utf-8")}
            for file in files[start : start + ROWS]
        ]
        yield pa.RecordBatch.from_pylist(rows)


def docstrings() -> Iterator[pa.RecordBatch]:
    """Yield `name`, `prompt` and `completion`: a function, and what its docstring begins with."""
    files = _files()
    for start in range(0, len(files), ROWS):
        rows = [
            {"name": f"{_path(file)}:{line}", "prompt": prompt, "completion": completion}
            for file in files[start : start + ROWS]
            for line, prompt, completion in _documented(file)
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows)


def _files() -> list[Path]:
    """Return the modules that are taken; an empty one has nothing to learn from."""
    return sorted(
        file
        for file in LIBRARY.rglob("*.py")
        if not LEFT_OUT.intersection(file.relative_to(LIBRARY).parts)
        and not any(part.startswith(GENERATED) for part in file.relative_to(LIBRARY).parts)
        and 0 < file.stat().st_size <= MOST
    )


def _path(file: Path) -> str:
    return file.relative_to(LIBRARY).as_posix()


def _documented(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, signature and the docstring's first paragraph of functions that have one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        paragraph = inspect.cleandoc(ast.get_docstring(node) or "").partition("\n\n")[0].strip()
        if paragraph:
            yield node.lineno, f"# {_path(file)}\n{_signature(node)}\n", paragraph


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "def" if isinstance(node, ast.FunctionDef) else "async def"
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{word} {node.name}({ast.unparse(node.args)}){answer}:"
