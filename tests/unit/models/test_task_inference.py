"""Whether whole numbers are classes or a number, on tables as people bring them."""

import random
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.infer_schema import is_measured
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshots import Snapshot

CHANCE = random.Random(3)
DIGITS = [n % 10 for n in range(1797)]
STARS = [CHANCE.randint(0, 5) for _ in range(40)]
YEARS = [CHANCE.choice((2007, 2008, 2009)) for _ in range(344)]
DECADES = [CHANCE.randint(1922, 2011) for _ in range(1000)]
MASSES: list[object] = [25 * CHANCE.randint(108, 252) for _ in range(338)]
PRICES = list(range(10_000, 12_000)) * 3
HUNDRED = [n % 100 for n in range(60_000)]


@pytest.fixture
def made(tmp_path: Path):  # type: ignore[no-untyped-def]
    installation = Installation(tmp_path, "", str(tmp_path / "tables")).prepared()

    def make(values: Sequence[object], **dataset: object) -> Snapshot:
        rows = "\n".join(f"{CHANCE.gauss(0, 1):.3f},{value}" for value in values)
        (tmp_path / "r.csv").write_text(f"x,t\n{rows}\n")
        spec = DatasetSpec.model_validate({"source": "r.csv", "target": "t", **dataset})
        return ingest(Pipeline(name="p", dataset=spec).with_folder(tmp_path), installation)

    return make


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (DIGITS, "category"),
        (DIGITS[:30], "category"),
        (STARS, "category"),
        (YEARS, "category"),
        (DECADES, "float"),
        (MASSES, "float"),
        (PRICES, "float"),
        (HUNDRED, "category"),
    ],
    ids=["digits", "30 digits", "stars", "3 years", "90 years", "masses", "prices", "100 classes"],
)
def test_what_whole_numbers_are(made, values: Sequence[object], type_: str) -> None:  # type: ignore[no-untyped-def]
    assert made(values).schema.column("t").type == type_


@pytest.mark.parametrize(
    ("numbers", "rows", "measured"),
    [
        (range(0, 40, 2), 20, False),
        (range(21), 419, True),
        (range(21), 420, False),
        (range(1, 101), 5000, False),
        ([*range(70), *range(75, 100)], 5000, False),
        (range(15, 90), 1500, True),
        (range(15, 90), 10**6, True),
        (range(94), 338, True),
        (range(1001), 10**6, True),
    ],
    ids=[
        *("twenty", "sparse labels", "labels", "labels from 1", "labels with a gap"),
        *("heights", "many heights", "sparse", "too many"),
    ],
)
def test_the_rule(numbers: Collection[int], rows: int, measured: bool) -> None:
    assert is_measured(numbers, rows) is measured


def test_many_classes_are_said_with_the_key_that_decides(made, caplog) -> None:  # type: ignore[no-untyped-def]
    made(HUNDRED)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "100 different whole numbers" in line
    assert "dataset.task: regression" in line


def test_it_is_said_with_the_key_that_decides(made, caplog) -> None:  # type: ignore[no-untyped-def]
    with caplog.at_level("INFO", "millrace"):
        made([*MASSES, "NA"])
    (line,) = [r.getMessage() for r in caplog.records if "regression" in r.getMessage()]
    assert f"t holds {len(set(MASSES))} different whole numbers in 338 rows" in line
    assert "dataset.task: classification" in line


def test_a_key_decides(made) -> None:  # type: ignore[no-untyped-def]
    assert made(MASSES, task="classification").schema.column("t").type == "category"
    assert made(MASSES, task="regression").schema.column("t").type == "float"
    assert made(STARS, task="regression").schema.column("t").type == "float"


def test_what_was_decided_is_held_when_the_data_grows(made) -> None:  # type: ignore[no-untyped-def]
    assert made(MASSES).schema.column("t").type == "float"
    assert made(DIGITS).schema.column("t").type == "float"


def test_what_an_earlier_millrace_held_as_classes_stays_classes(made) -> None:  # type: ignore[no-untyped-def]
    assert made(MASSES, task="classification").schema.column("t").type == "category"
    assert made(MASSES).schema.column("t").type == "category"


def test_a_task_that_contradicts_the_type_is_refused(made) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="contradict each other"):
        made(MASSES, task="classification", columns={"t": {"type": "float"}})
    whole = made(MASSES, task="regression", columns={"t": {"type": "int"}})
    assert whole.schema.column("t").type == "int"
