"""Requests to the live model, and what is live."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from models.answers import answers_of
from models.arrays import Array
from models.errors import InputError, MillraceError
from models.places import Places
from serving.client import TritonClient


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


def predict_live(places: Places, model: str, rows: str | None) -> LiveAnswer:
    """Send rows, or one golden row, to the version of a model that is live.

    Args:
        places: where Triton and the registry are.
        model: the model.
        rows: JSON Lines file, `-` for stdin, or None.

    Raises:
        InputError: the model is not served, or a row cannot be encoded.
        TransientError: Triton cannot be reached.
    """
    import time

    from models.features import FEATURES
    from models.registry import registry_of

    endpoint = places.triton[0]
    with TritonClient(endpoint) as client:
        version = client.live_version(model)
        if version is None:
            raise InputError(
                f"Triton does not serve {model!r}",
                valid=", ".join(sorted({m.name for m in client.index()})) or "no model is loaded",
                hint="run `millrace release` after a version got the alias champion",
            )
        registry = registry_of(places)
        package = registry.fetch(registry.version(model, version))
        features = _rows(package.encoding, rows) if rows else package.golden()[0][:1]
        started = time.perf_counter()
        answer = client.predict(model, {FEATURES: features}, version=version)
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


def _rows(encoding: Any, source: str) -> Array:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        features: Array = encoding.encode(pa.Table.from_pylist(rows))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(
            "the rows cannot be read",
            seen=f"{source}: {error}",
            valid="JSON Lines with " + ", ".join(f.name for f in encoding.features),
            hint="one JSON object a line",
        ) from error
    for number, fault in enumerate(encoding.errors(features), start=1):
        if fault:
            raise InputError(f"row {number} cannot be answered", seen=fault)
    return features


def live_versions(places: Places) -> Mapping[str, object]:
    """Return the live version of every model, by endpoint; or why there is none to tell."""
    found: dict[str, object] = {}
    for endpoint in places.triton:
        with TritonClient(endpoint) as client:
            try:
                names = sorted({entry.name for entry in client.index()})
                versions = {name: client.live_version(name) for name in names}
                found[endpoint.grpc] = {k: v for k, v in versions.items() if v is not None}
            except MillraceError as error:
                found[endpoint.grpc] = error.what
    return found
