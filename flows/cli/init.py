"""`millrace init`: looks at data, and writes a short pipeline file for it."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, report
from millrace.models.common.errors import InputError, list_names
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.models.data.seen_columns import SeenRows
    from millrace.models.data.sources.source import Source
    from millrace.models.data.suggest_pipeline import Suggestion

MOST_NAMED = 12
COMMENT = 34
"""Column of the file at which comments begin, where the line is shorter."""


def init(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, glob, folder, URI or module:function.")
    ],
    target: Annotated[
        str | None, typer.Option(help="The column to predict; chosen if left out.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; NAME.yaml if left out.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at data, and write a short pipeline file with what was seen in comments."""
    name = name_of(data)
    file = output or Path(f"{name}.yaml")
    if file.exists() and not force:
        raise InputError(
            f"{file} is there already",
            valid="a new file",
            hint="--force replaces it; --output FILE writes another",
        )
    if not file.parent.is_dir():
        raise InputError(f"there is no folder {file.parent}", valid="an existing folder")
    console.set_up_logging()
    source = _relative(data, file)
    with report_while("looking at the first rows"):
        seen, suggestion = _look(source, file.resolve().parent, target)
    text = write_pipeline(name, source, seen, suggestion)
    _publish(text, file)
    if as_json:
        console.print_json(
            {"file": str(file), "name": name, "rows": seen.rows, **_facts(suggestion)}
        )
        return
    from millrace.models.data.suggest_pipeline import describe_values

    rows = f"{'' if seen.is_whole else 'the first '}{seen.rows:,} rows"
    report(f"{file}: {rows}, {len(seen.columns)} columns")
    report(f"target: {suggestion.target.name}, {describe_values(suggestion.target)}")
    if suggestion.candidates:
        report(f"other targets: {', '.join(suggestion.candidates)}; choose one with --target")
    for column, why in suggestion.left_out.items():
        report(f"not learnt from: {column}, {why}")
    console.print_hint(
        f"`millrace check {file}` shows what a run does, `millrace run {file}` trains"
    )


def name_of(data: str) -> str:
    """Return a pipeline's name, from the name of its data."""
    data = data.removeprefix("sklearn:")
    stem = re.split(r"[:?*\[]", data.rstrip("/").split("/")[-1])[0].split(".")[0]
    stem = stem or Path(data.split("*")[0]).name
    name = re.sub(r"[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:63]
    return name if re.match(r"[a-z]", name) else f"data-{name}"[:63].rstrip("-")


def _relative(data: str, file: Path) -> str:
    """Return a local path of data as the pipeline file needs it: from its own folder."""
    if "://" in data or data.startswith("sklearn:") or Path(data).is_absolute():
        return data
    from millrace.models.data.sources.open_source import FUNCTION

    if FUNCTION.fullmatch(data):
        return data
    return os.path.relpath(Path.cwd() / data, file.resolve().parent)


def _look(source: str, folder: Path, target: str | None) -> "tuple[SeenRows, Suggestion]":
    from millrace.models.config.dataset_spec import DatasetSpec
    from millrace.models.data.seen_columns import look_at
    from millrace.models.data.sources.open_source import open_source
    from millrace.models.data.sources.source import read_error
    from millrace.models.data.suggest_pipeline import suggest

    spec = DatasetSpec(source=source, target=target or "")
    try:
        opened = open_source(spec, folder)
        if opened.schema is not None and opened.schema.names:
            # A source refuses a target that it does not have, and none is chosen yet.
            spec = spec.model_copy(update={"target": opened.schema.names[0]})
            opened = open_source(spec, folder)
        seen = look_at(opened, spec)
    except OSError as error:
        raise read_error(source, error) from error
    _require_columns(source, [each.name for each in seen.columns] or _names_of(opened))
    if not seen.rows:
        raise InputError(f"{source} holds no rows", valid="at least one row")
    return seen, suggest(seen, source, target)


def _names_of(opened: "Source") -> list[str]:
    return [] if opened.schema is None else list(opened.schema.names)


def _require_columns(source: str, names: Sequence[str]) -> None:
    """Refuse a file whose cells are separated by something else than its format's.

    Raises:
        InputError: its only column has a name that looks like several.
    """
    found = [mark for mark in ";\t|" if len(names) == 1 and mark in names[0]]
    if found:
        raise InputError(
            f"{source} seems to have cells separated by {found[0]!r}",
            seen=f"one column: {names[0][:80]}",
            valid="commas in .csv, tabs in .tsv; decimal points",
            hint="write it so, or as Parquet",
        )


def _publish(text: str, file: Path) -> None:
    """Write the file, once it is known to be valid: every name in it comes from the data."""
    from millrace.models.config.pipeline_file import load_pipeline

    staged = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        staged.write_text(text)
        load_pipeline(staged)
        staged.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written", seen=error) from error
    finally:
        staged.unlink(missing_ok=True)


def _facts(suggestion: "Suggestion") -> dict[str, Any]:
    from millrace.models.data.suggest_pipeline import is_class

    return {
        "target": suggestion.target.name,
        "task": "classification" if is_class(suggestion.target) else "regression",
        "candidates": suggestion.candidates,
        "key": suggestion.key.name if suggestion.key else None,
        "left_out": suggestion.left_out,
        "null_values": suggestion.null_values,
    }


def write_pipeline(name: str, source: str, seen: "SeenRows", suggestion: "Suggestion") -> str:
    """Return the pipeline file as YAML, with what was seen in comments."""
    rows = f"{seen.rows:,} rows" if seen.is_whole else f"the first {seen.rows:,} rows"
    if suggestion.text is not None:
        model = _line("model: {family: text_classifier}", "needs the extra millrace[text]")
    else:
        model = _line(
            "model: {family: mlp}",
            "or module:Class of yours; or gradient_boosting, without training",
        )
    lines = [
        f"# Written by `millrace init`, from {rows} of {_comment(source)}.",
        f"name: {_scalar(name)}",
        *_dataset_lines(source, suggestion),
        model,
    ]
    if suggestion.epochs is not None:
        lines.append(_line(f"training: {{epochs: {suggestion.epochs}}}", "a small table"))
    lines.append(_line("promotion: manual", "by a person; auto promotes what is no worse"))
    return "\n".join(lines) + "\n"


def _dataset_lines(source: str, suggestion: "Suggestion") -> Iterator[str]:
    from millrace.models.config.dataset_spec import NULL_VALUES
    from millrace.models.data.suggest_pipeline import describe_values

    target = suggestion.target
    yield "dataset:"
    yield f"  source: {_scalar(source)}"
    yield _line(f"  target: {_scalar(target.name)}", describe_values(target))
    if suggestion.candidates:
        yield _line("", f"or: {', '.join(suggestion.candidates)}")
    if suggestion.key is not None:
        yield _line(f"  key: {_scalar(suggestion.key.name)}", "a value of its own in every row")
    if suggestion.features is not None:
        names = ", ".join(map(_scalar, suggestion.features))
        yield _line(f"  features: [{names}]", "the columns to learn from")
    if suggestion.null_values:
        words = ", ".join(map(_scalar, (*NULL_VALUES, *suggestion.null_values)))
        yield _line(f"  null_values: [{words}]", "words that are read as null")
    if suggestion.columns:
        yield "  columns:"
    for column, (declared, why) in suggestion.columns.items():
        yield _line(f"    {_scalar(column)}: {declared}", why)
    if suggestion.max_quarantine is not None:
        share = f"  max_quarantine: {suggestion.max_quarantine:g}"
        yield _line(share, f"{target.nulls:,} rows have no {target.name}")
    yield from _left_out(suggestion)


def _left_out(suggestion: "Suggestion") -> list[str]:
    declared = suggestion.columns
    others = [name for name in suggestion.left_out if name not in declared]
    if not others:
        return []
    return [f"  # not learnt from: {_comment(list_names(others, MOST_NAMED))}"]


def _line(text: str, comment: str) -> str:
    return f"{text + ' ':<{COMMENT}}# {_comment(comment)}"


def _comment(text: str) -> str:
    """Return text of the data as one line of a comment."""
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def _scalar(text: str) -> str:
    """Return text as a YAML scalar, in quotes where it needs them, also in a list."""
    listed: str = yaml.dump(
        [text], Dumper=yaml.CSafeDumper, default_flow_style=True, allow_unicode=True, width=10**6
    )
    return listed.strip()[1:-1]
