"""Figures of the code's structure: `python -m bench.structure [CHECKOUT] [--json]`.

It counts files, their sizes and the imports between them, from the source of the five packages;
nothing is imported. It accepts the flat names (`models.errors`) and the names inside the
distribution (`millrace.models.common.errors`), so that two commits can be compared.
"""

import ast
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

import typer

PACKAGES = ("flows", "tasks", "models", "export", "serving")
DISTRIBUTION = "millrace"
SMALL_FILE = 40  # lines
LONG_FUNCTION = 60  # lines

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


@dataclass(frozen=True)
class Structure:
    """Figures of one checkout's five packages. Lines count blank lines, comments, docstrings.

    Attributes:
        files: Python files, `__init__.py` among them.
        file_lines_median: Lines of a file that is not an `__init__.py`; `_p90` likewise.
        function_lines_median: Lines of a function or method; `_p90` likewise.
        one_importer: Files, without `__init__.py`, that exactly one other file imports.
        small_files: Files of fewer than 40 lines that are not an `__init__.py`.
        repeated_names: File names, without `__init__.py`, that more than one file has.
        long_functions: Functions of more than 60 lines.
        statements: Statements of any depth, without docstrings.
        circles: Circles of imports, also inside functions; each is cut when it is found.
        test_files: Python files of tests.
        test_functions: Functions `test_…` in them; parameters do not count.
    """

    files: int
    file_lines_median: float
    file_lines_p90: float
    function_lines_median: float
    function_lines_p90: float
    one_importer: int
    small_files: int
    repeated_names: int
    long_functions: int
    statements: int
    circles: int
    test_files: int
    test_functions: int


@dataclass(frozen=True)
class Details:
    """The places behind a checkout's figures, by path."""

    one_importer: dict[str, str]
    small_files: dict[str, int]
    repeated_names: dict[str, list[str]]
    long_functions: dict[str, int]
    circles: list[list[str]]


def main(
    checkout: Annotated[Path, typer.Argument(help="The folder of the checkout.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print the places too, as JSON.")] = False,
) -> None:
    """Print the figures of a checkout."""
    try:
        structure, details = measure(checkout)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        values = {"figures": asdict(structure), "places": asdict(details)}
        sys.stdout.write(json.dumps(values, indent=1) + "\n")
        return
    for name, figure in asdict(structure).items():
        sys.stdout.write(f"{name:<24}{figure:>8}\n")


def measure(checkout: Path) -> tuple[Structure, Details]:
    """Return the figures of `checkout`, and the places behind them.

    Raises:
        ValueError: one of the five packages is not there.
    """
    missing = [name for name in PACKAGES if not (checkout / name).is_dir()]
    if missing:
        raise ValueError(f"{checkout} is not a checkout: it has no {', '.join(missing)}")
    sources = {
        path.relative_to(checkout).as_posix(): path.read_text()
        for name in PACKAGES
        for path in sorted((checkout / name).rglob("*.py"))
    }
    trees = {path: ast.parse(source) for path, source in sources.items()}
    modules = {path: source for path, source in sources.items() if not is_init(path)}
    lines = {path: len(source.splitlines()) for path, source in modules.items()}
    functions = {
        f"{path}:{node.lineno}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Function)
    }
    imports = {path: find_imports(path, tree, sources) for path, tree in trees.items()}
    details = Details(
        one_importer=find_single_importers(imports),
        small_files={path: count for path, count in lines.items() if count < SMALL_FILE},
        repeated_names=find_repeated_names(modules),
        long_functions={name: size for name, size in functions.items() if size > LONG_FUNCTION},
        circles=find_circles(imports),
    )
    tests = [ast.parse(path.read_text()) for path in sorted((checkout / "tests").rglob("*.py"))]
    structure = Structure(
        files=len(sources),
        file_lines_median=statistics.median(lines.values()),
        file_lines_p90=percentile_90(list(lines.values())),
        function_lines_median=statistics.median(functions.values()),
        function_lines_p90=percentile_90(list(functions.values())),
        one_importer=len(details.one_importer),
        small_files=len(details.small_files),
        repeated_names=len(details.repeated_names),
        long_functions=len(details.long_functions),
        statements=sum(map(count_statements, trees.values())),
        circles=len(details.circles),
        test_files=len(tests),
        test_functions=sum(
            isinstance(node, Function) and node.name.startswith("test_")
            for tree in tests
            for node in ast.walk(tree)
        ),
    )
    return structure, details


def is_init(path: str) -> bool:
    """Return whether a file is a package's `__init__.py`."""
    return path.endswith("__init__.py")


def percentile_90(values: list[int]) -> float:
    """Return the 90th percentile of `values`."""
    return statistics.quantiles(values, n=10)[-1]


def count_statements(tree: ast.Module) -> int:
    """Count the statements of a file at any depth, without docstrings."""
    nodes = list(ast.walk(tree))
    docstrings = sum(
        isinstance(node, Documented) and ast.get_docstring(node) is not None for node in nodes
    )
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def find_imports(path: str, tree: ast.Module, sources: dict[str, str]) -> set[str]:
    """Return the files of the five packages that a file imports, anywhere in it."""
    package = path.rsplit("/", 1)[0].replace("/", ".")
    names = list_imported_names(tree, package)
    return {file for name in names if (file := find_file(name, sources))} - {path}


def list_imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the dotted names that a file of a package imports, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def find_file(name: str, sources: dict[str, str]) -> str | None:
    """Return the file that holds a dotted name; None if it is not in the five packages."""
    parts = name.removeprefix(f"{DISTRIBUTION}.").split(".")
    for length in range(len(parts), 0, -1):
        base = "/".join(parts[:length])
        for file in (f"{base}.py", f"{base}/__init__.py"):
            if file in sources:
                return file
    return None


def find_single_importers(imports: dict[str, set[str]]) -> dict[str, str]:
    """Return the files that exactly one other file imports, each with that file."""
    importers: dict[str, set[str]] = defaultdict(set)
    for path, imported in imports.items():
        for file in imported:
            importers[file].add(path)
    return {
        file: next(iter(by))
        for file, by in sorted(importers.items())
        if len(by) == 1 and not is_init(file)
    }


def find_repeated_names(modules: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that more than one file has, each with those files."""
    counts = Counter(path.rsplit("/", 1)[-1] for path in modules)
    return {
        name: [path for path in modules if path.rsplit("/", 1)[-1] == name]
        for name, count in sorted(counts.items())
        if count > 1
    }


def find_circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the circles of imports; each is cut when it is found."""
    graph = {path: set(imported) for path, imported in imports.items()}
    circles = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            circles.append(circle)
            # Each file of the list is imported by the next one.
            graph[circle[1]].discard(circle[0])
        else:
            return circles


if __name__ == "__main__":
    typer.run(main)
