"""A home that an earlier commit made is worked with by the code of today."""

import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pytest

from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.serving.openai_api import api_key
from millrace.serving.release.ledger import ledger_of
from tests.integration.conftest import Home

HOMES = Path(__file__).parents[1] / "stored_homes"
MADE_IN = "/tmp/h19/home"
SECRET = "mr-YQbA2JzygoJyg0x27j7Bi5X_m-g2z7ySjrjAVB5UU_s"
PLACES_OF_FILES = (
    *(("experiments", "artifact_location"), ("runs", "artifact_uri")),
    *(("model_versions", "source"), ("model_versions", "storage_location")),
    *(("logged_models", "artifact_location"), ("experiment_tags", "value"), ("tags", "value")),
    *(("inputs", "source_id"), ("datasets", "dataset_source")),
)


@dataclass(frozen=True)
class Stored:
    """A stored home, moved to where the test is."""

    home: Home
    installation: Installation

    @property
    def file(self) -> str:
        return str(self.home.path / "small.yaml")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], Home]) -> Stored:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(HOMES / "eb2db76.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    home = folder / "eb2db76"
    home.chmod(0o700)
    database = sqlite3.connect(home / "mlflow.db")
    with database:
        for table, column in PLACES_OF_FILES:
            known = {row[1] for row in database.execute(f"pragma table_info({table})")}
            if column in known:
                database.execute(
                    f"update {table} set {column} = replace({column}, ?, ?)", (MADE_IN, str(home))
                )
    database.close()
    installation = Installation(home, f"sqlite:///{home}/mlflow.db", str(home / "tables"))
    return Stored(make(home), installation)


def test_its_version_and_its_releases_are_read(stored: Stored) -> None:
    version = registry_of(stored.installation).by_alias("small", "champion")
    assert version is not None
    assert (version.version, version.kind.name) == (1, "graph")
    events = ledger_of(stored.installation).releases("small")
    assert [(event.kind, event.version) for event in events] == [("proved", 1), ("live", 1)]


def test_its_api_key_opens(stored: Stored) -> None:
    keys = api_key.read_keys(stored.home.path / "openai_keys.json")
    owner = api_key.find_owner(keys, SECRET)
    assert owner is not None
    assert owner.name == "reader"


def test_what_was_live_scores_another_night_beside_the_old_one(stored: Stored) -> None:
    done = stored.home.run("score", stored.file, "--date", "2026-11-24", "--json")
    assert done.code == 0, done.err
    assert (done.json["rows"], done.json["model_version"]) == (300, 1)
    table = deltalake.DeltaTable(stored.home.path / "tables" / "predictions" / "small")
    dates = table.to_pyarrow_table(columns=["date"])["date"].value_counts().to_pylist()
    assert {str(each["values"]): each["counts"] for each in dates} == {
        "2026-11-23": 300,
        "2026-11-24": 300,
    }


def test_a_row_of_the_old_night_is_traced_to_its_data(stored: Stored) -> None:
    done = stored.home.run("lineage", "small", "--row", "7", "--date", "2026-11-23", "--json")
    assert done.code == 0, done.err
