"""`millrace init` writes a file that `check` accepts, of data as people bring it."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.flows.cli.init import name_of
from millrace.models.common.errors import InputError
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.sample_check import SampleCheck, check_sample
from millrace.models.data.suggest_pipeline import KEY_NAME

CHANCE = random.Random(5)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*words: str) -> str:
    done = CliRunner().invoke(main.make_app(), ["init", *words])
    if done.exception is not None:
        raise done.exception
    return done.stderr


def checked(file: str) -> SampleCheck:
    """Return what `check` finds; every row must be good."""
    found = check_sample(load_pipeline(Path(file)), None)
    assert found is not None
    assert not found.reasons
    return found


def write(name: str, *columns: str, rows: int = 300) -> None:
    """Write a CSV; a column is `name=kind`."""
    kinds = {
        "id": lambda n: f"A{n}",
        "count": lambda n: str(n + 1),
        "number": lambda n: f"{CHANCE.gauss(40, 5):.2f}",
        "gaps": lambda n: "NA" if n % 9 == 0 else f"{CHANCE.gauss(40, 5):.2f}",
        "class": lambda n: "abc"[n % 3],
        "marked": lambda n: "?" if n % 7 == 0 else "xy"[n % 2],
        "date": lambda n: f"2024-01-{n % 28 + 1:02d}",
        "text": lambda n: f"note {n}",
        "long": lambda n: " ".join(
            CHANCE.choice(["one", "two", "three", "four"]) for _ in range(30)
        ),
        "stars": lambda n: str(n % 6),
        "partly": lambda n: "" if n % 8 == 0 else "yn"[n % 2],
    }
    named = [column.split("=") for column in columns]
    lines = [",".join(f'"{kinds[kind](n)}"' for _, kind in named) for n in range(rows)]
    Path(name).write_text("\n".join([",".join(name for name, _ in named), *lines]) + "\n")


def test_a_table_with_everything() -> None:
    write(
        "My birds 2.csv",
        *("id=id", "bill=gaps", "island=marked", "seen=date", "notes=text", "species=class"),
    )
    said = init("My birds 2.csv")
    pipeline = load_pipeline(Path("my-birds-2.yaml"))
    assert (pipeline.dataset.target, pipeline.dataset.key) == ("species", ("id",))
    assert {name for name, c in pipeline.dataset.columns.items() if c.nullable} == {
        "bill",
        "island",
    }
    assert "?" in pipeline.dataset.null_values
    assert pipeline.training.epochs == 100
    schema = checked("my-birds-2.yaml").schema
    assert schema.features == ("bill", "island")
    assert "3 classes: a 100, b 100, c 100" in said
    assert "notes, 300 different texts" in said
    assert "seen, dates are stored" in said
    text = Path("my-birds-2.yaml").read_text()
    assert "# 34 nulls" in text
    assert "or: bill (a number), island (2 classes)" in text


def test_the_target_is_what_is_named() -> None:
    write("a.csv", "x=number", "stars=stars", "c=class")
    init("a.csv", "--target", "stars")
    assert load_pipeline(Path("a.yaml")).dataset.target == "stars"
    assert checked("a.yaml").schema.column("stars").type == "category"
    with pytest.raises(InputError, match="is not there") as refused:
        init("a.csv", "--target", "star", "--force")
    assert "stars" in str(refused.value.hint)


def test_a_file_is_not_replaced_without_a_word() -> None:
    write("a.csv", "x=number", "c=class")
    init("a.csv")
    before = Path("a.yaml").read_text()
    with pytest.raises(InputError, match="is there already"):
        init("a.csv", "--target", "x")
    assert Path("a.yaml").read_text() == before
    init("a.csv", "--target", "x", "--force")
    assert load_pipeline(Path("a.yaml")).dataset.target == "x"


def test_rows_without_a_target_are_accepted() -> None:
    write("a.csv", "x=number", "c=partly")
    init("a.csv", "--target", "c")
    assert load_pipeline(Path("a.yaml")).dataset.max_quarantine >= 1 / 8


def test_a_text_is_classified() -> None:
    write("reviews.csv", "review=long", "label=class")
    init("reviews.csv")
    pipeline = load_pipeline(Path("reviews.yaml"))
    assert (pipeline.model.family, pipeline.dataset.features) == ("text_classifier", ("review",))
    checked("reviews.yaml")


def test_many_different_categories_are_stored() -> None:
    write("a.csv", "x=number", "name=text", "c=class", rows=5000)
    init("a.csv")
    assert load_pipeline(Path("a.yaml")).dataset.columns["name"].type == "string"
    assert checked("a.yaml").schema.features == ("x",)


def test_nested_columns_are_left_out(folder: Path) -> None:
    rows = pa.table(
        {
            "x": [float(n) for n in range(60)],
            "v": [[1.0, float(n)] for n in range(60)],
            "deep": [{"a": n} for n in range(60)],
            "empty": pa.nulls(60),
            "kind": ["ab"[n % 2] for n in range(60)],
        }
    )
    pq.write_table(rows, "deep.parquet")
    (folder / "sub").mkdir()
    init("deep.parquet", "--output", "sub/deep.yaml")
    pipeline = load_pipeline(Path("sub/deep.yaml"))
    assert pipeline.dataset.source == "../deep.parquet"
    assert pipeline.dataset.features == ("x", "v")
    checked("sub/deep.yaml")


def test_names_that_yaml_would_read_otherwise_are_quoted() -> None:
    rows = [
        {"yes": n % 7, "a: b": n * 2.5, "#1": f"c{n % 2}", "null": n % 2 == 0} for n in range(40)
    ]
    Path("odd.jsonl").write_text("\n".join(map(json.dumps, rows)))
    init("odd.jsonl", "--target", "#1")
    assert yaml.safe_load(Path("odd.yaml").read_text())["dataset"]["target"] == "#1"
    assert checked("odd.yaml").schema.features == ("yes", "a: b", "null")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("x,y\n", "holds no rows"),
        ("id,when\n1,2024-01-01\n2,2024-01-02\n", "no column that can be predicted"),
        ("c\na\nb\na\nb\n", "no column of"),
    ],
)
def test_data_without_a_task_is_refused(rows: str, said: str) -> None:
    Path("bad.csv").write_text(rows)
    with pytest.raises(InputError, match=said):
        init("bad.csv")
    assert not Path("bad.yaml").exists()
    assert list(Path.cwd().glob(".bad*")) == []


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("data/My File.v2.csv", "my-file"),
        ("s3://b/rows/*.parquet", "rows"),
        ("rows:read", "rows"),
        ("2024.csv", "data-2024"),
        ("sklearn:iris", "iris"),
        ("世界.csv", "data"),
    ],
)
def test_the_name_is_from_the_data(data: str, name: str) -> None:
    assert name_of(data) == name


def test_a_key_is_known_by_its_name() -> None:
    named = {"id", "ID", "customer_id", "customerId", "order-no", "uuid", "key"}
    assert {
        name for name in (*named, "paid", "acid", "ideas", "index_score") if KEY_NAME.search(name)
    } == named


def test_a_first_column_of_names_is_the_key() -> None:
    write("a.csv", "name=text", "x=number", "c=class")
    init("a.csv")
    assert load_pipeline(Path("a.yaml")).dataset.key == ("name",)
    write("b.csv", "x=number", "name=text", "c=class")
    init("b.csv")
    assert load_pipeline(Path("b.yaml")).dataset.key == ()


def test_a_first_column_that_counts_the_rows_is_the_key() -> None:
    write("a.csv", "flat=count", "x=number", "c=class")
    init("a.csv")
    assert load_pipeline(Path("a.yaml")).dataset.key == ("flat",)
    write("b.csv", "year=stars", "x=number", "c=class")
    write("c.csv", "x=number", "flat=count", "c=class")
    for name in "bc":
        init(f"{name}.csv")
        assert load_pipeline(Path(f"{name}.yaml")).dataset.key == ()


def test_odd_types_and_names_give_a_file_that_check_accepts(folder: Path) -> None:
    numbers = [0.5 + n / 7 for n in range(40)]
    rows = {
        "half": pa.array(numbers).cast(pa.float16()),
        "large": pa.array([2**64 - 1 - n for n in range(40)], pa.uint64()),
        "c": ["a", "b"] * 20,
    }
    pq.write_table(pa.table(rows), "yes.parquet")
    init("yes.parquet")
    assert checked("yes.yaml").schema.features == ("half", "large")


@pytest.mark.parametrize("text", ["x;c\n1,5;a\n2,5;b\n", "x;c\n1;a\n2;b\n"])
def test_other_separators_are_named(text: str) -> None:
    Path("a.csv").write_text(text)
    with pytest.raises(InputError, match="cells separated by ';'"):
        init("a.csv")


def test_json_names_the_file_and_the_choice() -> None:
    write("a.csv", "x=number", "c=class")
    done = CliRunner().invoke(main.make_app(), ["init", "a.csv", "--json"])
    found = json.loads(done.stdout)
    assert (found["file"], found["target"], found["task"]) == ("a.yaml", "c", "classification")
