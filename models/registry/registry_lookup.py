"""Reads versions from MLflow's registry without MLflow, whose import takes seconds.

For a command that only asks whether a version is still the same. If the registry cannot be read in
this simple way, `LookupUnavailable` is raised, and the caller asks MLflow itself.
"""

import json
import sqlite3
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPException
from typing import Any

from millrace.models.registry.version_files import ModelVersion

TIMEOUT_S = 2.0
KNOWN_SCHEMAS = frozenset({"dc11669786a5"})
"""Revisions of MLflow's database that the queries below are written for."""
WORKSPACE = "default"
DELETED = "Deleted_Internal"
"""MLflow's stage of a version that was deleted."""
ALIAS = (
    "SELECT version FROM registered_model_aliases WHERE workspace = ? AND name = ? AND alias = ?"
)
VERSION = (
    "SELECT name, version, run_id, source FROM model_versions "
    f"WHERE workspace = ? AND name = ? AND version = ? AND current_stage != '{DELETED}'"
)
ALIASES = (
    "SELECT alias FROM registered_model_aliases WHERE workspace = ? AND name = ? AND version = ?"
)
TAGS = "SELECT key, value FROM model_version_tags WHERE workspace = ? AND name = ? AND version = ?"


class LookupUnavailable(Exception):  # noqa: N818 - it means "ask MLflow", and is no failure
    """The registry has no such version, or only MLflow can read it."""


def look_up_alias(tracking_uri: str, model: str, alias: str) -> ModelVersion:
    """Return the version that an alias points at.

    Args:
        tracking_uri: address of MLflow: `http://…`, or `sqlite:///…`.
        model: name of the registered model.
        alias: the alias.

    Raises:
        LookupUnavailable: there is no such alias, or only MLflow can read this registry.
    """
    if tracking_uri.startswith(("http://", "https://")):
        return _request(tracking_uri, "registered-models/alias", name=model, alias=alias)
    with _open_database(tracking_uri) as database:
        (number,) = _first(database.execute(ALIAS, (WORKSPACE, model, alias)))
        return _select_version(database, model, number)


def look_up_version(tracking_uri: str, model: str, number: int) -> ModelVersion:
    """Return one version; arguments and errors are those of `look_up_alias`."""
    if tracking_uri.startswith(("http://", "https://")):
        return _request(tracking_uri, "model-versions/get", name=model, version=str(number))
    with _open_database(tracking_uri) as database:
        return _select_version(database, model, number)


def _request(address: str, page: str, **query: str) -> ModelVersion:
    """Return the version that MLflow's REST API describes."""
    url = f"{address.rstrip('/')}/api/2.0/mlflow/{page}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            found = json.load(answer)["model_version"]
        tags = {each["key"]: each["value"] for each in found.get("tags", ())}
        return _version_of(found, tags, found.get("aliases", ()))
    except (OSError, ValueError, HTTPException, KeyError, TypeError) as error:
        raise LookupUnavailable(str(error)) from error


@contextmanager
def _open_database(uri: str) -> Iterator[sqlite3.Connection]:
    """Open MLflow's SQLite database for reading, in one transaction."""
    scheme, _, path = uri.partition(":///")
    if scheme != "sqlite" or not path:
        raise LookupUnavailable(f"only MLflow can read {scheme}")
    address = f"file:{urllib.parse.quote(path)}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=TIMEOUT_S)) as database:
            database.row_factory = sqlite3.Row
            database.execute("BEGIN")
            (schema,) = _first(database.execute("SELECT version_num FROM alembic_version"))
            if schema not in KNOWN_SCHEMAS:
                raise LookupUnavailable(f"the database has the unknown schema {schema}")
            yield database
    except sqlite3.Error as error:
        raise LookupUnavailable(str(error)) from error


def _select_version(database: sqlite3.Connection, model: str, number: int) -> ModelVersion:
    key = (WORKSPACE, model, number)
    found = dict(_first(database.execute(VERSION, key)))
    tags = {row["key"]: row["value"] for row in database.execute(TAGS, key)}
    return _version_of(found, tags, [row["alias"] for row in database.execute(ALIASES, key)])


def _first(rows: sqlite3.Cursor) -> Any:
    row = rows.fetchone()
    if row is None:
        raise LookupUnavailable("the registry has no such version")
    return row


def _version_of(
    found: Mapping[str, Any], tags: Mapping[str, str], aliases: Iterable[str]
) -> ModelVersion:
    described = (found["name"], found["version"], found.get("run_id"), found.get("source"))
    return ModelVersion.registered(*described, tags, aliases)
