"""Batch jobs of several models that start at the same moment on one home, as cron starts them."""

from collections.abc import Callable
from pathlib import Path

import deltalake
import yaml

from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHAMPION
from tests.integration.conftest import Home
from tests.integration.planted import DATASET, good, ingest_rows, plant

MODELS = ("north", "east", "south", "west")
DATE = "2026-01-05"


def test_four_models_are_scored_at_once_on_one_home(
    tmp_path: Path, make: Callable[[Path], Home]
) -> None:
    home = make(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    place = Installation(home.path, f"sqlite:///{home.path}/mlflow.db", f"{home.path}/tables")
    place.prepared()
    registry = registry_of(place)
    for name in MODELS:
        ingest_rows(place, name)
        planted = plant(place, name, good())
        registry.set_alias(registry.version(name, planted.number), CHAMPION)
        keys = {"name": name, "dataset": DATASET.model_dump(mode="json", exclude_unset=True)}
        keys["batch"] = {"num_actors": 1}
        (home.path / f"{name}.yaml").write_text(yaml.safe_dump(keys))
    jobs = [home.start("score", f"{home.path}/{name}.yaml", "--date", DATE) for name in MODELS]
    ends = [(job.communicate(timeout=240), job.returncode) for job in jobs]
    assert [code for _, code in ends] == [0] * len(MODELS), [err[-2000:] for (_, err), _ in ends]
    for name in MODELS:
        table = deltalake.DeltaTable(f"{place.tables_uri}/predictions/{name}")
        assert table.to_pyarrow_table().num_rows == 200
