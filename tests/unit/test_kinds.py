"""Kinds of models: each answers every step, and nothing outside its folders knows it."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.models.config.model_kind import KINDS, ModelKind, all_kinds, load_object
from millrace.serving.triton.version_config import TritonKind
from millrace.tasks.kinds.steps import KindSteps

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "models", "export", "serving")
REGISTRY = "models/config/model_kind.py"
SCHEMA = (
    "models/config/batch_spec.py",
    "models/config/export_spec.py",
    "models/config/pipeline.py",
    "models/config/serving_spec.py",
    "models/config/training_spec.py",
)
"""The pipeline file has one schema, with the keys of all kinds in it."""
ALL_FOLDERS = tuple(folder for kind in all_kinds() for folder in kind.folders)


def steps_of_protocol(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


@pytest.mark.parametrize("kind", all_kinds(), ids=list(KINDS))
@pytest.mark.parametrize("step", steps_of_protocol(KindSteps))
def test_a_kind_answers_every_step_with_the_arguments_of_the_protocol(
    kind: ModelKind, step: str
) -> None:
    wanted = list(inspect.signature(getattr(KindSteps, step)).parameters)[1:]
    assert list(inspect.signature(load_object(kind.steps[step])).parameters) == wanted


@pytest.mark.parametrize("kind", all_kinds(), ids=list(KINDS))
def test_a_kind_says_no_step_that_is_none(kind: ModelKind) -> None:
    assert set(kind.steps) == set(steps_of_protocol(KindSteps))


@pytest.mark.parametrize("kind", all_kinds(), ids=list(KINDS))
def test_triton_can_be_told_of_a_kind(kind: ModelKind) -> None:
    made = load_object(kind.triton)()
    for name in steps_of_protocol(TritonKind):
        wanted = inspect.signature(getattr(TritonKind, name)).parameters
        found = inspect.signature(getattr(made, name)).parameters
        assert list(found) == list(wanted)[1:]


@pytest.mark.parametrize("folder", ALL_FOLDERS)
def test_the_folders_of_kinds_are_there(folder: str) -> None:
    assert (ROOT / folder).exists()


def shared_files() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in SCHEMA and not is_in(name, ALL_FOLDERS):
                yield name


def is_in(name: str, folders: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def known_of_kinds(source: str) -> list[str]:
    """Return what a file says of kinds: names, values and imports."""
    words = {kind.name for kind in all_kinds()}
    values = words | {family for kind in all_kinds() for family in kind.families}
    pattern = re.compile("|".join(rf"(^|_){word}(_|$)" for word in words), re.IGNORECASE)
    classes = tuple("".join(part.title() for part in word.split("_")) for word in words)
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in names_in(node):
            if pattern.search(name) or re.search(rf"({'|'.join(classes)})([A-Z_]|$)", name):
                found.append(name)
        if isinstance(node, ast.Constant) and node.value in values:
            found.append(repr(node.value))
        for module in modules_in(node):
            file = module.removeprefix("millrace.").replace(".", "/")
            if is_in(file, ALL_FOLDERS) or is_in(f"{file}.py", ALL_FOLDERS):
                found.append(f"from {module}")
    return found


def modules_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module), names=aliases):
            yield module
            yield from (f"{module}.{alias.name}" for alias in aliases)
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)


def names_in(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
            yield from (name for alias in aliases for name in (alias.name, alias.asname) if name)
        case ast.keyword(arg=str(name)):
            yield name


@pytest.mark.parametrize(
    "source",
    [
        "is_language = True",
        "isinstance(package, LanguageFiles)",
        "if version.kind.name == 'graph': pass",
        "if family == 'causal_lm': pass",
        "from millrace.models.language.recipe import Recipe",
        "def register_language(version): pass",
        "call(graph=1)",
        "class AsyncLanguageClient: pass",
        "async def serve_language(): pass",
        "import millrace.models.language.recipe",
        "from millrace.models import language",
        "import numpy as graph",
    ],
)
def test_what_knows_a_kind_is_found(source: str) -> None:
    assert known_of_kinds(source)


@pytest.mark.parametrize(
    "source", ["kind.name", "paragraph = 1", "languages = ('de', 'en')", "'a graph of services'"]
)
def test_what_knows_none_is_not(source: str) -> None:
    assert not known_of_kinds(source)


@pytest.mark.parametrize("name", list(shared_files()))
def test_no_file_outside_the_folders_of_kinds_knows_one(name: str) -> None:
    found = known_of_kinds((ROOT / name).read_text())
    if name == REGISTRY:
        assert set(found) == {repr(kind) for kind in KINDS}
    else:
        assert found == []
