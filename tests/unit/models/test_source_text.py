import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest as tables
from millrace.models.data.snapshots import Snapshot, scan
from millrace.models.data.sources import text_source
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.source import Unreadable


def spec(source: str, **more: Any) -> DatasetSpec:
    return DatasetSpec(source=source, target=more.pop("target", "text"), **more)


def rows(source: str, folder: Path, **more: Any) -> dict[str, str]:
    batches = open_source(spec(source, **more), folder).batches()
    return {row["path"]: row["text"] for batch in batches for row in batch.to_pylist()}


def put_aside(source: str, folder: Path, **more: Any) -> list[Unreadable]:
    chunks = open_source(spec(source, **more), folder).chunks()
    return [each for chunk in chunks for each in chunk.unreadable]


def ingest(folder: Path, source: str, **dataset: Any) -> Snapshot:
    values = {
        "name": "t",
        "dataset": {"source": source, "target": "text", **dataset},
        "model": {"family": "causal_lm"},
    }
    installation = Installation(folder / "home", "", str(folder / "home" / "tables"))
    return tables.ingest(Pipeline.model_validate(values).with_folder(folder), installation)


def test_every_file_is_a_row_with_its_path_from_where_the_glob_starts(tmp_path: Path) -> None:
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "sub" / "b.py").write_text("b = 'é'\n")
    assert rows("src/**/*.py", tmp_path) == {"sub/b.py": "b = 'é'\n"}
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    assert rows("src/**/*.py", tmp_path) == {"a.py": "a = 1\n", "sub/b.py": "b = 'é'\n"}
    assert rows("src/a.py", tmp_path) == {"a.py": "a = 1\n"}
    assert rows("src/sub/../*.py", tmp_path) == {"a.py": "a = 1\n"}


def test_what_is_no_utf8_text_is_put_aside_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "surrogate.txt").write_bytes(b"a\xed\xa0\x80b")
    assert rows("*.txt", tmp_path) == {"good.txt": "good"}
    assert put_aside("*.txt", tmp_path) == [
        Unreadable("the file is not UTF-8 text", "latin.txt", before=1),
        Unreadable("the file is not UTF-8 text", "surrogate.txt", before=1),
    ]


def test_an_empty_file_is_no_row_and_nul_bytes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_bytes(b"")
    (tmp_path / "nul.py").write_bytes(b"a\x00b")
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert rows("*.py", tmp_path) == {"nul.py": "a\x00b", "marked.py": "x = 1\n"}
    assert ingest(tmp_path, "*.py").rows == 2


def test_only_empty_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_bytes(b"")
    with pytest.raises(InputError, match="holds no rows"):
        ingest(tmp_path, "*.py")


def test_a_file_that_is_too_large_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_source, "MAX_BYTES", 2**20)
    (tmp_path / "fits.txt").write_text("x" * 2**20)
    (tmp_path / "large.txt.gz").write_bytes(gzip.compress(b"x" * (2**20 + 1)))
    assert list(rows("*.txt*", tmp_path)) == ["fits.txt"]
    assert [each.reason for each in put_aside("*.txt*", tmp_path)] == [
        "the file is larger than 1 MiB"
    ]


def test_files_come_in_chunks_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_source, "CHUNK_BYTES", 1000)
    for number in range(20):
        (tmp_path / f"{number:02}.md").write_text("x" * 300)
    sizes = [batch.num_rows for batch in open_source(spec("*.md"), tmp_path).batches()]
    assert sizes == [4, 4, 4, 4, 4, 0]


def test_any_ending_is_text_when_it_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("a")
    assert rows("*.dat", tmp_path, format="text") == {"a.dat": "a"}


def test_the_path_is_the_key_and_the_text_is_all_that_is_learnt_from(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    made = ingest(tmp_path, "*.txt")
    assert (made.schema.key, made.schema.features) == (("path",), ())
    assert made.schema.column("text").type == "text"
    before = {row["path"]: row["_bucket"] for batch in scan(made) for row in batch.to_pylist()}
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"another text {number}")
    again = ingest(tmp_path, "*.txt")
    assert again.version == made.version + 1
    assert {r["path"]: r["_bucket"] for b in scan(again) for r in b.to_pylist()} == before


def test_documents_that_are_the_same_stay_apart_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b.txt").write_text("same")
    made = ingest(tmp_path, "*.txt")
    keys = pa.Table.from_batches(scan(made))["_key"].to_pylist()
    assert sorted(keys) == ["a.txt", "b.txt"]


def test_a_line_of_five_megabytes_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 1_000_000)
    made = ingest(tmp_path, "*.txt")
    (batch,) = scan(made)
    assert len(batch["text"][0].as_py()) == 5_000_000
