"""Requests to the live model, and what is live."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.flows.cli.predict_text import LiveText, predict_text
from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, TransientError, closest, nearest
from millrace.models.common.installation import Installation
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import LanguagePackage
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import DesiredVersion, derive_state
from millrace.serving.triton.client import TritonClient

if TYPE_CHECKING:
    from millrace.models.registry.version_files import ModelVersion

MAX_VALUES = 10
"""Values of a category that an error names."""


@dataclass(frozen=True)
class LiveAnswer:
    """What the live model answered.

    Attributes:
        model: the model.
        version: the version that answered.
        endpoint: the server.
        predictions: one for each row.
        scores: probability of the predicted class, or the value.
        milliseconds: of the request.
    """

    model: str
    version: int
    endpoint: str
    predictions: tuple[Any, ...]
    scores: tuple[float, ...]
    milliseconds: float


def predict_live(
    places: Installation,
    model: str,
    rows: str | None = None,
    text: str | None = None,
    say: Callable[[str], None] = lambda piece: None,
) -> LiveAnswer | LiveText:
    """Send a request to the version of a model that is live: rows, or a text to go on with.

    Args:
        places: where Triton and the registry are.
        model: the model.
        rows: JSON Lines file, `-` for stdin; None for a golden row.
        text: for a language model, `-` for stdin; None for a golden prompt.
        say: takes the pieces of a language model's answer as they come.

    Raises:
        InputError: the model is not served, takes the other of rows and text, or a row cannot be
            encoded.
        TransientError: Triton cannot be reached, or has not loaded the champion yet.
    """
    import time

    from millrace.models.registry.mlflow_registry import CHAMPION, registry_of

    endpoint = places.triton[0]
    with TritonClient(endpoint) as client:
        registry = registry_of(places)
        version = client.live_version(model)
        if version is None:
            raise _not_served(places, client, model, registry.by_alias(model, CHAMPION))
        package = registry.fetch(registry.version(model, version))
        if isinstance(package, LanguagePackage):
            _refuse(rows, model, "rows", "a text to go on with: --text TEXT, or --text - for stdin")
            return predict_text(client, package, text, say)
        _refuse(text, model, "a text", "rows: --rows FILE, or --rows - for stdin")
        package = package.graph
        golden = package.golden_request()
        request = (
            _rows(package.encoding, rows) if rows else {name: a[:1] for name, a in golden.items()}
        )
        started = time.perf_counter()
        answer = client.predict(model, request, version=version)
        seconds = time.perf_counter() - started
    meaning = answers_of(package.encoding)
    values = answer[meaning.output]
    return LiveAnswer(
        model,
        version,
        endpoint.grpc,
        tuple(meaning.prediction(values)),
        tuple(float(score) for score in meaning.score(values)),
        seconds * 1000,
    )


def _refuse(given: str | None, model: str, what: str, valid: str) -> None:
    if given is not None:
        raise InputError(f"{model} does not take {what}", seen=given, valid=valid)


def _not_served(
    places: Installation, client: TritonClient, model: str, champion: "ModelVersion | None"
) -> InputError | TransientError:
    """Return the error of a model that is not loaded: for now, refused, or wanted by nobody."""
    standing = derive_state(ledger_of(places).releases(model))
    if champion is not None and standing.has_refused(
        DesiredVersion(champion.version, champion.digest)
    ):
        return InputError(
            f"version {champion.version} of {model} is the champion, and was refused",
            seen=standing.refused.reason if standing.refused else None,
            hint="move the alias champion; `millrace release` has this one tried again",
        )
    if champion is not None:
        return TransientError(
            f"version {champion.version} of {model} is the champion, but Triton has not loaded it",
            hint="it loads within a minute of a start of Triton; `millrace release` does it now",
        )
    return InputError(
        f"Triton does not serve {model!r}",
        valid=", ".join(sorted({m.name for m in client.index()})) or "no model is loaded",
        hint=nearest(model, [m.name for m in client.index()])
        or "run `millrace release` after a version got the alias champion",
    )


def _rows(encoding: Encoding, source: str) -> dict[str, Array]:
    """Read JSON Lines and return them as a request; every row must hold every field."""
    rows = _objects(encoding, source)
    _require_fields(encoding, rows)
    columns = {f.name: _column(f.name, [row[f.name] for row in rows]) for f in encoding.features}
    table = pa.table(columns)
    for number, fault in enumerate(encoding.errors(encoding.encode(table)), start=1):
        if fault:
            raise _unanswerable(encoding, number, fault, rows[number - 1])
    return encoding.request(table)


def _objects(encoding: Encoding, source: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except (OSError, ValueError) as error:
        raise _unreadable(encoding, f"{source}: {error}") from error
    rows = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _unreadable(encoding, f"{source}, row {number}: {error}") from error
        if not isinstance(row, dict):
            raise _unreadable(encoding, f"{source}, row {number}: {_shown(row)}")
        rows.append(row)
    if not rows:
        raise _unreadable(encoding, f"{source}: no rows")
    return rows


def _unreadable(encoding: Encoding, seen: str) -> InputError:
    return InputError(
        "the rows cannot be read",
        seen=seen,
        valid="JSON Lines with " + ", ".join(f.name for f in encoding.features),
        hint="one JSON object a line",
    )


def _require_fields(encoding: Encoding, rows: Sequence[Mapping[str, Any]]) -> None:
    known = {feature.name for feature in encoding.features}
    for number, row in enumerate(rows, start=1):
        for feature in encoding.features:
            if feature.name not in row:
                raise InputError(
                    f"row {number} has no field {feature.name!r}",
                    seen=", ".join(row) or "no fields",
                    valid=", ".join(f.name for f in encoding.features),
                    hint=_remedy(feature, [name for name in row if name not in known]),
                )


def _remedy(feature: Feature, unknown: list[str]) -> str:
    """Return what to do about a field that is not there, where a row has others unknown to us."""
    if meant := closest(feature.name, unknown):
        return f"did you mean {feature.name!r} by {meant!r}?"
    return "write null where it is not known" if feature.nullable else "add it"


def _column(name: str, cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"the values of {name!r} cannot be read together",
            seen=error,
            hint="give the field the same type in every row",
        ) from error


def _unanswerable(
    encoding: Encoding, number: int, fault: str, row: Mapping[str, Any]
) -> InputError:
    feature = next(
        f for f in encoding.features if fault in {f"{f.name} {said}" for said in f.faults}
    )
    return InputError(
        f"row {number} cannot be answered: {fault}",
        seen=_shown(row[feature.name]),
        valid=_valid(feature),
        hint="mend the row, or leave it out",
    )


def _valid(feature: Feature) -> str:
    if feature.kind == "number":
        return _valid_number(feature)
    if feature.kind == "text":
        return "text"
    if feature.kind == "vector":
        return f"{feature.width} finite numbers"
    shown = ", ".join(_shown(value) for value in feature.categories[:MAX_VALUES])
    more = len(feature.categories) - MAX_VALUES
    return shown + (f", … {more} more" if more > 0 else "")


def _valid_number(feature: Feature) -> str:
    if feature.values == "bool":
        return "true or false"
    kind = "a whole number" if feature.values == "int" else "a finite number"
    low = "" if feature.min is None else f" from {feature.min:g}"
    return kind + low + ("" if feature.max is None else f" to {feature.max:g}")


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:200]
