"""A forgotten row stays away, though the source still has it, until it is allowed again."""

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.forgotten_keys import (
    ForgottenKeys,
    describe_left_out,
    remember_forgotten,
)
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.tasks import check_all as check_all_module
from millrace.tasks.check_all import check_all
from millrace.tasks.retention.forget import allow_again, forget

ROWS = [f"k{n},g{n % 2},{n / 7:.3f},{'ab'[n % 2]}" for n in range(20)]
SECRET, BAD = "k7", "k20,g0,,a"
Read = Callable[..., Snapshot]


class Waited(Exception):
    """Raised instead of waiting."""


def no_wait(what: str) -> None:
    raise Waited(what)


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))


def pipeline_in(folder: Path, **settings: Any) -> Pipeline:
    columns = {"id": {"type": "string"}, "g": {"type": "string"}, "x": {"type": "float"}}
    dataset = {"source": "*.csv", "target": "y", "key": ["id"], "columns": columns}
    return Pipeline.model_validate(
        {"name": "t", "dataset": {**dataset, "max_quarantine": 0.5, **settings}}
    ).with_folder(folder)


@pytest.fixture
def read(tmp_path: Path, home: Installation) -> Read:
    """Return what ingests two files; keyword arguments are settings of the dataset."""
    (tmp_path / "a.csv").write_text("\n".join(["id,g,x,y", *ROWS[:10]]) + "\n")
    (tmp_path / "b.csv").write_text("\n".join(["id,g,x,y", *ROWS[10:]]) + "\n")
    return lambda **settings: ingest(pipeline_in(tmp_path, **settings), home)


def keys_of(snapshot: Snapshot) -> set[str]:
    return {key for rows in scan(snapshot) for key in rows["_key"].to_pylist()}


def change(file: Path) -> None:
    with file.open("a") as opened:
        opened.write("new,g0,1.5,b\n")


@pytest.mark.parametrize("how", ["full", "changed", "other settings"])
def test_a_forgotten_row_stays_out_of_later_snapshots(
    read: Read, home: Installation, tmp_path: Path, how: str
) -> None:
    read()
    forget(home, "t", [SECRET], no_wait)
    without = open_snapshot(home, "t")
    if how == "changed":
        change(tmp_path / "a.csv")
    settings: dict[str, dict[str, Any]] = {
        "full": {"mode": "full"},
        "other settings": {"features": ["x"]},
    }
    again = read(**settings.get(how, {}))
    assert SECRET not in keys_of(again)
    assert again.left_out == 1
    if how == "full":
        assert (again.created, again.digest) == (False, without.digest)
    assert again.rows == without.rows + (how == "changed")


def test_the_next_run_reads_the_files_of_forgotten_rows_again_and_then_no_more(
    read: Read, home: Installation
) -> None:
    read()
    forget(home, "t", [SECRET], no_wait)
    words = [
        "read 1 of 2 files (1 with forgotten rows); 1 as before",
        "read 0 of 2 files; 2 as before",
    ]
    for says in words:
        again = read()
        assert (again.created, again.left_out, str(again.files_read)) == (False, 1, says)


@pytest.mark.parametrize("keys", [["k20"], ["k20", SECRET]])
def test_bad_rows_are_counted_as_a_full_reading_counts_them(
    read: Read, home: Installation, tmp_path: Path, keys: list[str]
) -> None:
    with (tmp_path / "b.csv").open("a") as file:
        file.write(f"{BAD}\nk21,g0,,a\n")
    read()
    forget(home, "t", keys, no_wait)
    again, full = read(), read(mode="full")
    assert (again.quarantined, again.left_out, again.repeated_keys) == (1, len(keys), 0)
    assert (again.digest, again.bad_files, again.left_out, again.reasons) == (
        full.digest, full.bad_files, full.left_out, full.reasons
    )  # fmt: skip


def test_a_key_of_several_columns_stays_out(read: Read, home: Installation) -> None:
    read(key=["g", "id"])
    forget(home, "t", ["g1|k7"], no_wait)
    again = read(key=["g", "id"], mode="full")
    assert (again.rows, again.left_out) == (19, 1)


def test_a_row_without_key_columns_stays_out_by_its_hash(read: Read, home: Installation) -> None:
    key = sorted(keys_of(read(key=[])))[0]
    forget(home, "t", [key], no_wait)
    again = read(key=[], mode="full")
    assert (again.rows, again.left_out, key in keys_of(again)) == (19, 1, False)


def test_a_forgotten_bad_row_stays_out_of_quarantine(
    read: Read, home: Installation, tmp_path: Path
) -> None:
    with (tmp_path / "b.csv").open("a") as file:
        file.write(f"{BAD}\nk21,g0,,a\n")
    assert read().quarantined == 2
    forget(home, "t", ["k20"], no_wait)
    change(tmp_path / "b.csv")
    again = read()
    assert (again.quarantined, again.left_out, again.bad_files) == (
        1, 1, {str(tmp_path / "b.csv"): 1}
    )  # fmt: skip
    stored = DeltaTable(home.table("quarantine", "t")).to_pyarrow_table()
    assert not [row for row in stored["row"].to_pylist() if "k20" in row]
    assert set(stored["record"].to_pylist()) == {12}


def test_a_key_that_is_allowed_again_is_read(read: Read, home: Installation) -> None:
    read()
    forget(home, "t", [SECRET, "k8"], no_wait)
    assert allow_again(home, "t", [SECRET], no_wait, dry_run=True) == {SECRET}
    assert read(mode="full").left_out == 2
    assert allow_again(home, "t", [SECRET, "unknown"], no_wait) == {SECRET}
    again = read(mode="full")
    assert (again.rows, again.left_out) == (19, 1)
    assert SECRET in keys_of(again)
    assert allow_again(home, "t", [SECRET], no_wait) == set()


def test_a_key_without_a_row_is_not_remembered(read: Read, home: Installation) -> None:
    read()
    forget(home, "t", ["unknown", SECRET], no_wait)
    forget(home, "t", ["k8"], no_wait)
    stored = ForgottenKeys.read(home.table("datasets", "t"))
    assert stored.hashes.tolist() == ForgottenKeys.of([SECRET, "k8"]).hashes.tolist()


def test_a_full_check_leaves_it_out_too(read: Read, home: Installation, tmp_path: Path) -> None:
    read()
    forget(home, "t", [SECRET], no_wait)
    found = check_all(pipeline_in(tmp_path), open_snapshot(home, "t"), home)
    assert (found.snapshot.rows, found.snapshot.left_out, found.unchanged) == (19, 1, True)


def test_the_rows_of_a_killed_check_are_found(
    read: Read, home: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, left = read(), home.staging / "check-t-leftover"

    def leave(*_: object) -> bool:
        (folder,) = home.staging.glob("check-t-*")
        shutil.copytree(folder / "tables", left)
        return True

    monkeypatch.setattr(check_all_module, "is_unchanged", leave)
    check_all(pipeline_in(tmp_path), stored, home)
    assert list(home.staging.iterdir()) == [left]
    assert list(left.rglob("*.parquet"))
    forget(home, "t", [SECRET], no_wait)
    assert not left.exists()


def test_a_model_without_a_dataset_is_refused(home: Installation) -> None:
    with pytest.raises(InputError, match="there is no dataset"):
        allow_again(home, "nothing", ["a"], no_wait)


def test_tasks_of_other_machines_get_the_keys() -> None:
    again = pickle.loads(pickle.dumps(ForgottenKeys.of(["a", "b"])))
    assert again.hashes.tolist() == ForgottenKeys.of(["b", "a"]).hashes.tolist()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (1, "1 row was left out of the source, because its key was forgotten; erase it from"),
        (2500, "2,500 rows were left out of the source, because their keys were forgotten; erase"),
    ],
)
def test_rows_that_were_left_out_are_told(rows: int, words: str) -> None:
    assert describe_left_out(rows).startswith(words)


def test_a_mistyped_model_is_told_what_there_is(read: Read, home: Installation) -> None:
    read()
    with pytest.raises(InputError) as raised:
        open_snapshot(home, "tt")
    assert (raised.value.valid, raised.value.hint) == ("t", "did you mean 't'?")


def test_a_source_of_forgotten_rows_only_is_told(
    read: Read, home: Installation, tmp_path: Path
) -> None:
    read()
    forget(home, "t", [f"k{n}" for n in range(10)], no_wait)
    (tmp_path / "b.csv").unlink()
    with pytest.raises(InputError, match="the keys of all of them were forgotten") as raised:
        read()
    assert raised.value.seen == "10 rows with forgotten keys"
    assert open_snapshot(home, "t").rows == 10


def test_commands_at_once_do_not_lose_each_others_keys(home: Installation) -> None:
    uri, keys = home.table("datasets", "t"), [f"k{n}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: remember_forgotten(uri, [key]), keys))
    assert ForgottenKeys.read(uri).among(keys) == set(keys)


def test_the_rows_with_the_key_of_an_earlier_row_are_still_known(
    read: Read, home: Installation, tmp_path: Path
) -> None:
    source = tmp_path / "b.csv"
    lines = source.read_text().rstrip("\n")
    source.write_text(f"{lines}\nk3,g0,0.1,a\n{SECRET},g0,0.2,b\n")
    assert read().repeated_keys == 2
    forget(home, "t", [SECRET], no_wait)
    assert read().repeated_keys == read(mode="full").repeated_keys == 1
