"""Every example, link, path, key and variable of the documentation is checked; nothing is run.

A fenced block of a language that is not listed in `CHECKS` fails, and so does a program that is not
listed in `PROGRAMS`. What is cheap enough is also run, by `tests/integration/test_readme.py`.
"""

import ast
import importlib.util
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

from millrace.flows import settings
from millrace.flows.cli.main import make_app
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.planner.catalogue import read_devices
from millrace.tasks.kinds.gradient_boosting.boosting_job import BoostingParams
from millrace.tasks.kinds.gradient_boosting.boosting_params import PARAMS
from millrace.tasks.plan import OWN_DEVICES
from tests.docs_pages import (
    README,
    ROOT,
    Block,
    Command,
    all_blocks,
    blocks_of,
    code_words,
    guides,
    is_run_in_process,
    name_of,
    pages,
    prose_of,
)

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = frozenset(re.findall(r"^([a-z]+):.*?## ", MAKEFILE, flags=re.M))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OF_OTHERS = re.compile(r"(MLFLOW|PREFECT|RAY|OPENAI)_[A-Z_]+")
"""Variables of the tools that Millrace runs on."""
LEAST = {"name": "fragment", "dataset": {"source": "rows.csv", "target": "y"}}
"""What a YAML block that is only a part of a pipeline file is put into."""
DERIVED = "MILLRACE_DERIVED"
"""Set by Millrace for its own processes."""


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_every_block_is_valid(block: Block, tmp_path: Path) -> None:
    assert block.language in CHECKS, f"{block}: no check for a block of {block.language!r}"
    CHECKS[block.language](block, tmp_path)


def test_a_block_of_an_unknown_kind_has_no_check() -> None:
    assert "text" not in CHECKS
    assert "" not in CHECKS


def test_an_unknown_option_key_target_or_module_is_seen(tmp_path: Path) -> None:
    for language, text in (
        ("bash", "millrace score mine.yaml --nope"),
        ("bash", "millrace keys add me --tokens-per-minute 0"),
        ("bash", "millrace run examples/gone.yaml"),
        ("bash", "millrace run examples/digits.yaml --set training.epoch=1"),
        ("bash", "MILLRACE_HOM=x millrace status"),
        ("bash", "make nothing"),
        ("bash", "rm -rf ."),
        ("console", "$ millrace predicted digits"),
        ("yaml", "training: {epoch: 5}"),
        ("python", "from millrace.models.families.units import Nothing"),
        ("python", "import no_such_module"),
        ("json", "{"),
        ("bash", "pip install 'millrace[text,nothing]'"),
    ):
        with pytest.raises(Exception):  # noqa: B017, PT011
            CHECKS[language](Block("docs/page.md", 1, language, text + "\n"), tmp_path)


def test_what_only_checks_a_file_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for block in all_blocks():
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text)
    commands = {str(c): c for b in all_blocks() if b.language == "bash" for c in b.commands}
    chosen = [command for command in commands.values() if is_run_in_process(command)]
    assert len(chosen) >= 5
    for command in chosen:
        done = CliRunner().invoke(make_app(), command.words[1:])
        assert done.exit_code == 0, f"{command.page}: {command}\n{done.output}{done.exception}"


def _check_commands(block: Block, _: Path) -> None:
    assert block.commands, f"{block} has no command"
    for command in block.commands:
        for name, _value in command.variables:
            _check_variable(name)
        if command.words:
            assert command.program in PROGRAMS, f"{block}: {command.program} is no known program"
            PROGRAMS[command.program](command)


def _check_yaml(block: Block, folder: Path) -> None:
    if block.file_name == OWN_DEVICES:
        (folder / OWN_DEVICES).write_text(block.text)
        assert read_devices(folder / OWN_DEVICES)
        return
    values = yaml.safe_load(block.text)
    assert isinstance(values, dict), f"{block} is no mapping"
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(values if "name" in values else {**LEAST, **values}))
    load_pipeline(file)


def _check_python(block: Block, _: Path) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert importlib.util.find_spec(alias.name), f"{block}: no module {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                _check_name(block, node.module, alias.name)


def _check_name(block: Block, module: str, name: str) -> None:
    """Check an imported name; of our own modules in their source, since importing takes seconds."""
    found = importlib.util.find_spec(module)
    assert found, f"{block}: no module {module}"
    if module.startswith("millrace.") and found.origin:
        tree = ast.parse(Path(found.origin).read_text())
        known = {getattr(node, "name", "") for node in tree.body}
        folder = Path(found.origin).parent
        is_module = (folder / f"{name}.py").is_file() or (folder / name).is_dir()
        assert name in known or is_module, f"{block}: {module} has no {name}"


def _check_json(block: Block, _: Path) -> None:
    json.loads(block.text)


def _check_mermaid(block: Block, _: Path) -> None:
    first, *lines = block.text.strip().splitlines()
    assert re.fullmatch(r"flowchart (LR|TB|BT)", first), f"{block}: {first}"
    words = [line.split()[0] for line in lines if line.strip()]
    assert words.count("subgraph") == words.count("end")
    for opened, closed in ("[]", "()", "{}"):
        assert block.text.count(opened) == block.text.count(closed), f"{block}: {opened}{closed}"


CHECKS: Mapping[str, Callable[[Block, Path], None]] = {
    "bash": _check_commands,
    "console": _check_commands,
    "yaml": _check_yaml,
    "python": _check_python,
    "json": _check_json,
    "mermaid": _check_mermaid,
}


# ---------------------------------------------------------------- commands


def _check_millrace(command: Command) -> None:
    """Parse the arguments with the command line's own parser; nothing is called."""
    words = list(command.words[1:])
    given, context = get_command(make_app()), None
    while True:
        context = given.make_context(given.name, words, parent=context)
        if not hasattr(given, "commands"):
            break
        rest = [*context._protected_args, *context.args]
        _, given, words = given.resolve_command(context, rest)
    files = [value for value in context.params.values() if str(value).endswith(".yaml")]
    for file in files:
        _check_pipeline(command, str(file), context.params.get("set_") or ())


def _check_pipeline(command: Command, file: str, overrides: tuple[str, ...]) -> None:
    if (ROOT / file).is_file():
        load_pipeline(ROOT / file, overrides)
        return
    named = [
        b for b in all_blocks() if b.file_name == file and b.page in (command.page, "README.md")
    ]
    assert named, f"{command.page}: no example and no block is {file}"


def _check_make(command: Command) -> None:
    wanted = [word for word in command.words[1:] if "=" not in word]
    assert set(wanted) <= TARGETS, f"{command}: targets are {sorted(TARGETS)}"


def _check_python_command(command: Command) -> None:
    first, *rest = command.words[1:]
    if first == "-m":
        assert importlib.util.find_spec(rest[0]), f"{command}: no module {rest[0]}"
        return
    scripts = {block.file_name for block in all_blocks() if block.page == command.page}
    assert first in scripts or (ROOT / first).is_file(), f"{command}: no file {first}"


def _check_pip(command: Command) -> None:
    for extra in re.findall(r"(?<=[\[,])\w+(?=[\],])", " ".join(command.words)):
        assert extra in EXTRAS, f"{command}: no extra {extra}"


def _check_curl(command: Command) -> None:
    address = next(word for word in command.words if word.startswith("http://"))
    port = int(address.split(":")[2].partition("/")[0])
    ports = {settings.Settings.model_fields[name].default for name in settings.PORTS}
    assert port in ports, f"{command}: no service listens at {port}"
    json.loads(command.words[command.words.index("-d") + 1])


def _check_export(command: Command) -> None:
    for word in command.words[1:]:
        _check_variable(word.partition("=")[0])


def _check_files(command: Command) -> None:
    """Check the files that a command of another tool is given."""
    for word in command.words:
        if word.endswith((".yaml", ".sh", ".toml")):
            assert (ROOT / word).is_file(), f"{command}: no file {word}"


def _check_variable(name: str) -> None:
    assert name in settings.variables() or OF_OTHERS.fullmatch(name), f"{name} is no setting"


PROGRAMS: Mapping[str, Callable[[Command], None]] = {
    "millrace": _check_millrace,
    "make": _check_make,
    "python": _check_python_command,
    ".venv/bin/python": _check_python_command,
    ".venv/bin/pip": _check_pip,
    "pip": _check_pip,
    "curl": _check_curl,
    "export": _check_export,
    "prefect": _check_files,
    "source": _check_files,
    "echo": _check_files,
    "git": _check_files,
}


# ---------------------------------------------------------------- prose


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_path_in_backticks_exists(page: Path) -> None:
    folders = "bench|docs|examples|export|flows|infra|models|serving|tasks|tests"
    paths = [w for w in code_words(page) if re.fullmatch(rf"(?:{folders})(?:/\w[\w.-]*)+/?", w)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_named_command_exists(page: Path) -> None:
    words = code_words(page)
    named = {m.group(1) for w in words if (m := re.match(r"millrace ([a-z]+)", w))}
    assert named <= set(get_command(make_app()).commands)
    targets = {m.group(1) for w in words if (m := re.match(r"make ([a-z]+)", w))}
    assert targets <= TARGETS


@pytest.mark.parametrize("page", guides(), ids=name_of)
def test_every_named_variable_and_key_exists(page: Path) -> None:
    words = code_words(page)
    variables = {m for w in words for m in re.findall(r"MILLRACE_[A-Z_]*[A-Z]", w)}
    assert variables <= set(settings.variables())
    parts = "|".join(name for name in Pipeline.model_fields if name != "name")
    endings = (".json", ".onnx", ".yaml", ".py", ".md", ".safetensors", ".png")
    keys = [w for w in words if re.fullmatch(rf"(?:{parts})(?:\.[a-z_]+)+", w)]
    wrong = [key for key in keys if not key.endswith(endings) and not _is_key(key)]
    assert wrong == []


def test_the_readme_is_short_and_links_every_guide() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    missing = [name for page in guides()[1:] if f"]({(name := name_of(page))})" not in text]
    assert missing == []


@pytest.mark.parametrize("page", guides()[1:], ids=name_of)
def test_a_guide_begins_with_its_purpose_and_a_command(page: Path) -> None:
    first = next(iter(blocks_of(page)), None)
    assert first is not None
    assert first.language == "bash"
    assert first.line <= 12


def test_the_settings_page_has_every_variable() -> None:
    rows = re.findall(r"^\| (`[A-Z].*?) \|", (ROOT / "docs/settings.md").read_text(), flags=re.M)
    documented = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert set(settings.variables()) - {DERIVED} <= documented


def test_the_pipeline_page_has_every_key_with_its_default() -> None:
    page = (ROOT / "docs/pipeline-file.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z0-9_.]+)` \| (.*?) \|", page, flags=re.M))
    known = dict(_leaves(Pipeline, ""))
    assert set(rows) == set(known) - {"name"}
    for key, cell in rows.items():
        if stated := re.fullmatch(r"`(.*)`", cell):
            text = stated.group(1)
            value = text if isinstance(known[key], str) else yaml.safe_load(text)
            assert _plain(known[key]) == value, f"{key} is {known[key]!r}"
        else:
            assert known[key] in (None, (), ""), f"{key} is {known[key]!r}, the page says {cell}"


def test_the_boosting_page_has_every_parameter_with_its_default() -> None:
    page = (ROOT / "docs/gradient-boosting.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", page, flags=re.M))
    own = {n: str(v) for n, v in vars(BoostingParams()).items() if n != "others"}
    assert rows == own
    _, _, others = page.partition("The others keep XGBoost's default")
    assert PARAMS.keys() - own.keys() <= set(re.findall(r"`(\w+)`", others.partition("##")[0]))


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("*.md")), ids=name_of)
def test_every_decision_has_its_date(page: Path) -> None:
    pattern = r"^- \*\*(.+?)\*\*(\s+\(20\d\d-\d\d-\d\d\))?"
    entries = re.findall(pattern, page.read_text(), flags=re.M | re.S)
    assert entries
    assert [title for title, date in entries if not date] == []


def _anchors(file: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads}


def _is_key(key: str) -> bool:
    """Whether a dotted key leads to a field of the pipeline's model; columns have any name."""
    model: Any = Pipeline
    for part in key.split("."):
        if model is None or part not in model.model_fields:
            return False
        model = _model_in(model.model_fields[part].annotation)
    return True


def _leaves(model: type[BaseModel], prefix: str) -> list[tuple[str, Any]]:
    """Return every key without keys below it, and its default; None where it is required."""
    found: list[tuple[str, Any]] = []
    for name, field in model.model_fields.items():
        inner = _model_in(field.annotation)
        if inner is not None and name != "columns":
            found += _leaves(inner, f"{prefix}{name}.")
        else:
            required = field.is_required()
            default = None if required else field.get_default(call_default_factory=True)
            found.append((prefix + name, default))
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = getattr(annotation, "__args__", None) or ()
    return next((model for argument in inner if (model := _model_in(argument))), None)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
