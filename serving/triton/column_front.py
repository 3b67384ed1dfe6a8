"""The model MODEL.columns: the step in front of a model that takes its columns by their names.

It has the same version number as the version that it asks, and only the live version has one. Both
are loaded beside each other: while MODEL switches to a higher version, the version before stays
loaded and the front step asks it, until the next front step is loaded.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import MillraceError, WorkError
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import loaded_anew, specific
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import COLUMNS, UNHEALTHY, ready_versions
from millrace.serving.triton.version_config import config_of
from millrace.serving.triton.version_folder import Artifact

BACKEND = "named_columns"
SCHEMA = "columns"
"""Parameter with the columns, the labels, the output and the target, as JSON."""
MOST_ROWS = 1024
"""Rows of one request; the model itself is asked for as many as it takes at once."""
REFUSED = "refused_front"
"""File in the model's folder, with the version whose front step a server refused."""
PROBE_SECONDS = 5.0


def start_front(
    model: str, version: int, repository: Repository, client: TritonClient, *, anew: bool = False
) -> None:
    """Serve the front step of a version on a replica, in place of that of another version.

    Args:
        model: the model.
        version: the version, which is loaded.
        repository: has the staged version.
        client: the replica.
        anew: load it even if the replica lists it as loaded.

    Raises:
        WorkError: Triton refused it, or has no such backend.
        TransientError: the replica cannot be reached.
    """
    artifact = repository.artifact(model, version)
    name = model + COLUMNS
    _link(model, version, repository)
    again = loaded_anew() if anew else {}
    lower = [each for each in ready_versions(client.index(), name) if each < version]
    # A request that Triton has given to the version before is refused if that one is gone, so that
    # one goes when requests are given to the new one.
    for loaded in ([*lower, version], [version]) if lower else ([version],):
        repository.write_config(front_config(model, loaded, artifact, again), artifact.labels)
        client.load(name)
    with suppress(FileNotFoundError):
        (repository.root / model / REFUSED).unlink()
    for other in repository.versions(model).get(name, ()):
        if other != version:
            repository.remove(name, other)


def _link(model: str, version: int, repository: Repository) -> None:
    """Link the version's files into the front step's folder; a copy that differs is made anew."""
    name = model + COLUMNS
    if version in repository.versions(model).get(name, ()):
        with suppress(WorkError):
            own, copy = (repository.artifact(each, version) for each in (model, name))
            is_same = (own.columns, own.contents) == (copy.columns, copy.contents)
            if is_same and repository.is_whole(name, version):
                return
        repository.remove(name, version)
    repository.link(model, version, name, version)


def refuse_front(model: str, version: int, repository: Repository) -> None:
    """Remember that a server refused the front step of a version: it is not tried again."""
    with suppress(OSError):
        (repository.root / model / REFUSED).write_text(str(version))


def refused_fronts(repository: Repository, models: Iterable[str]) -> dict[str, int]:
    """Return the versions whose front step a server refused, by model."""
    found = {}
    for model in models:
        with suppress(OSError, ValueError):
            found[model] = int((repository.root / model / REFUSED).read_text())
    return found


def front_config(
    model: str,
    versions: Collection[int],
    artifact: Artifact,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of the front steps of versions.

    Args:
        model: the model.
        versions: the versions that are loaded.
        artifact: the highest of them, which has columns.
        parameters: further parameters.
    """
    columns = json.loads(str(artifact.columns))
    served = config_of(model, artifact, version_policy=specific(versions))
    inputs = [_input(column) for column in columns["columns"]]
    rows = pb.ModelInput(name=columns["rows"], data_type=pb.TYPE_STRING, dims=[1], optional=True)
    known = {column["name"] for column in columns["columns"]}
    keys = [
        pb.ModelInput(name=name, data_type=pb.TYPE_STRING, dims=[1], optional=True)
        for name in columns["key"]
        if name not in known
    ]
    config = pb.ModelConfig(
        name=model + COLUMNS,
        backend=BACKEND,
        max_batch_size=MOST_ROWS,
        version_policy=specific(versions),
        input=[*inputs, *keys, rows],
        output=served.output,
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)],
        dynamic_batching=pb.ModelDynamicBatching(),
    )
    schema = {each: columns[each] for each in ("columns", "labels", "output", "target", "key")}
    values = {
        "model": model,
        "max_rows": str(served.max_batch_size),
        "rows": columns["rows"],
        SCHEMA: json.dumps(schema),
    }
    if artifact.serving.request_log is not None:
        values["request_log"] = artifact.serving.request_log.model_dump_json()
    for key, value in {**values, **(parameters or {})}.items():
        config.parameters[key].string_value = value
    return config


def is_answering(model: str, rows: str, client: TritonClient) -> bool:
    """Return whether the process of a front step lives: it refuses a row without columns.

    Args:
        model: the model.
        rows: its input with rows of JSON.
        client: the replica.
    """
    empty = np.array([[b"{}"]], dtype=object)
    try:
        client.predict(model + COLUMNS, {rows: empty}, timeout=PROBE_SECONDS, probe=True)
    except MillraceError as error:
        return UNHEALTHY not in str(error.seen)
    return True


def _input(column: Mapping[str, Any]) -> pb.ModelInput:
    """Return the input of a column; a null is NaN in a number, and empty in a text."""
    return pb.ModelInput(
        name=column["name"], data_type=_type(column), dims=[column["width"]], optional=True
    )


def _type(column: Mapping[str, Any]) -> int:
    """Return Triton's type of a column.

    As in pandas, whole numbers are floating where there may be nulls, and truths are texts.
    """
    kind, nullable = column["kind"], column["nullable"]
    values = column["values"] if kind == "number" else "float"
    if kind == "category":
        values = {str: "text", int: "int", bool: "bool"}[type(column["categories"][0])]
    if kind == "text" or values == "text":
        return int(pb.TYPE_STRING)
    if values == "bool":
        return int(pb.TYPE_STRING if nullable else pb.TYPE_BOOL)
    return int(pb.TYPE_INT64 if values == "int" and not nullable else pb.TYPE_FP64)
