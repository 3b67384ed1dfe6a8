import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from millrace.models.common.errors import InputError
from millrace.models.config.pipeline import Pipeline
from millrace.models.preflight import preflight

TABLE = pa.table({"a": [1.0, 2.0], "b": [1, 2], "t": ["x", "y"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.csv").write_text("a,b,t\n1,2,x\n")
    (tmp_path / "r.jsonl").write_text('{"a": 1, "b": 2, "t": "x"}\n')
    pq.write_table(TABLE, tmp_path / "r.parquet")
    write_deltalake(tmp_path / "r", TABLE)
    (tmp_path / "mine.py").write_text("rows = 3\ndef read(): raise RuntimeError\nclass Net: ...\n")
    return tmp_path


def pipeline(
    folder: Path, family: str = "mlp", params: dict[str, Any] | None = None, **dataset: Any
) -> Pipeline:
    values = {"target": "t", **dataset}
    model = {"family": family, "params": params or {}}
    return Pipeline.model_validate({"name": "p", "dataset": values, "model": model}).with_folder(
        folder
    )


SOURCES = ["r.csv", "r.jsonl", "r.parquet", "r"]


@pytest.mark.parametrize("source", [*SOURCES, "mine:read"])
def test_what_is_right_passes(folder: Path, source: str) -> None:
    preflight(pipeline(folder, source=source, key="b", features=["a"]))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target": "tt"}, r"dataset\.target names a column"),
        ({"key": "bb"}, r"dataset\.key names a column"),
        ({"features": ["aa"]}, r"dataset\.features names a column"),
        ({"columns": {"aa": {"type": "float"}}}, r"dataset\.columns names a column"),
        ({"features": ["t"]}, "among the features"),
    ],
)
def test_columns_that_are_not_there_are_told(
    folder: Path, source: str, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        preflight(pipeline(folder, source=source, **more))


def test_a_nullable_key_of_json_may_come_later(folder: Path) -> None:
    preflight(pipeline(folder, source="r.jsonl", columns={"late": {"nullable": True}}))


@pytest.mark.parametrize(
    ("source", "family", "words"),
    [
        ("gone.csv", "mlp", "does not exist"),
        ("mine:reed", "mlp", "no attribute 'reed'"),
        ("mine:rows", "mlp", "is not a function"),
        ("r.csv", "mine:Nat", "no attribute 'Nat'"),
        ("r.csv", "mine:rows", "cannot be called"),
        ("r.csv", "mlpp", "is not known"),
    ],
)
def test_what_is_not_there_is_told(folder: Path, source: str, family: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        preflight(pipeline(folder, family, source=source))


def test_a_family_of_ones_own_passes(folder: Path) -> None:
    preflight(pipeline(folder, "mine:Net", source="r.csv"))


NETS = """
class Net:
    def __init__(self, in_features, num_classes, depth=2): ...

class Open:
    def __init__(self, num_classes, **more): ...

def make(in_features, num_classes, *, depth): ...
"""


@pytest.mark.parametrize(
    ("family", "params"),
    [
        ("mlp", {"hidden": [32], "dropout": 0.1}),
        ("cnn", {"image_shape": [1, 8, 8], "shift": 1}),
        ("text_classifier", {"hidden_size": 64}),
        ("nets:Net", {"depth": 3}),
        ("nets:Net", {"in_features": 3}),
        ("nets:Open", {"anything": 3}),
        ("nets:make", {"depth": 3}),
    ],
)
def test_params_that_the_family_has_pass(folder: Path, family: str, params: dict[str, Any]) -> None:
    (folder / "nets.py").write_text(NETS)
    preflight(pipeline(folder, family, params, source="r.csv"))


@pytest.mark.parametrize(
    ("family", "params", "valid", "hint"),
    [
        ("mlp", {"hiden": [32]}, "hidden, dropout", "did you mean 'hidden'?"),
        ("mlp", {"num_classes": 3}, "hidden, dropout", "use a name from the list above"),
        ("text_classifier", {"num_layers": 2}, None, "did you mean 'num_hidden_layers'?"),
        ("nets:Net", {"dept": 3}, "depth", "did you mean 'depth'?"),
        ("nets:make", {"x": 3}, "depth", "use a name from the list above"),
    ],
)
def test_params_that_the_family_has_not_are_refused(
    folder: Path, family: str, params: dict[str, Any], valid: str | None, hint: str
) -> None:
    (folder / "nets.py").write_text(NETS)
    name = next(iter(params))
    with pytest.raises(InputError, match=f"model.params.{name} is not a parameter") as told:
        preflight(pipeline(folder, family, params, source="r.csv"))
    assert valid in (None, told.value.valid)
    assert told.value.hint == hint


def test_params_are_checked_without_torch() -> None:
    code = (
        "import sys; from millrace.models.config.training_spec import ModelSpec\n"
        "from millrace.models.families import family_params as f\n"
        "[f.require_known_params(ModelSpec(family=name)) for name in f.FAMILIES]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
