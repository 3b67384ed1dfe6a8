import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.config.training_spec import ModelSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.corpus import packing
from millrace.models.language.corpus import sequences as stored
from millrace.models.language.corpus.sequences import StoredSequences
from millrace.models.language.corpus.token_table import SPLITS, TokenTable, make_token_table

Ingest = Callable[..., Snapshot]
MODEL = ModelSpec.model_validate(
    {"family": "causal_lm", "tokenizer": {"vocab_size": 300, "max_tokens": 32}}
)


@pytest.fixture
def table(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation, monkeypatch: pytest.MonkeyPatch
) -> TokenTable:
    monkeypatch.setattr(packing, "BATCH_TOKENS", 500)
    rows = [{"prompt": f"{n} + 1?", "text": f"it is {n + 1}"} for n in range(300)]
    columns = {"text": {"type": "text"}}
    snapshot = ingest_text(rows, features=["prompt"], key=["prompt"], columns=columns)
    return make_token_table(snapshot, SplitSpec(), MODEL, tmp_path, embedded)


def test_every_position_is_the_row_of_the_table(
    tmp_path: Path, table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_BATCH_BYTES", 32 * 4 * 7)
    rows = DeltaTable(table.uri).to_pyarrow_table().to_pylist()
    for split in SPLITS:
        wanted = {row["position"]: row for row in rows if row["split"] == split}
        sequences = StoredSequences.of(table, split, tmp_path / "cache")
        assert len(sequences) == len(wanted)
        for position in reversed(range(len(sequences))):
            ids, lengths, answer = sequences.sequence(position)
            assert answer is not None
            assert ids.tolist() == wanted[position]["input_ids"]
            assert lengths == wanted[position]["lengths"]
            assert answer.tolist() == wanted[position]["answer"]


def test_a_corpus_has_no_answers(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    snapshot = ingest_text([{"text": f"text {n} " * 9} for n in range(100)])
    table = make_token_table(snapshot, SplitSpec(), MODEL, tmp_path, embedded)
    ids, lengths, answer = StoredSequences.of(table, "train", tmp_path / "cache").sequence(0)
    assert answer is None
    assert sum(lengths) == len(ids)


def test_a_position_that_is_not_there_is_refused(tmp_path: Path, table: TokenTable) -> None:
    sequences = StoredSequences.of(table, "test", tmp_path / "cache")
    for position in (-1, len(sequences)):
        with pytest.raises(IndexError):
            sequences.sequence(position)


def test_a_copy_is_made_once_and_pickling_takes_no_rows_along(
    tmp_path: Path, table: TokenTable
) -> None:
    cache = tmp_path / "cache"
    sequences = StoredSequences.of(table, "train", cache)
    first = sequences.sequence(0)[0].tolist()
    (folder,) = cache.iterdir()
    assert folder.name == f"{table.fingerprint}-train"
    pickled = pickle.dumps(sequences)
    assert len(pickled) < 1000
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).sequence(0)[0].tolist())"
    made = (folder / "sequences.arrow").stat().st_mtime_ns
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickled,
        capture_output=True,
        check=True,
        env={},
    )
    assert done.stdout.decode().strip() == str(first)
    assert (folder / "sequences.arrow").stat().st_mtime_ns == made


def test_two_at_once_end_with_one_copy(
    tmp_path: Path, table: TokenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = StoredSequences.of(table, "train", tmp_path / "cache")
    write = stored._write

    def overtaken(given: StoredSequences, folder: Path) -> None:
        write(given, folder)
        monkeypatch.setattr(stored, "_write", write)
        stored._copy(given)

    monkeypatch.setattr(stored, "_write", overtaken)
    assert len(sequences.sequence(0)[0]) > 0
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [sequences.folder.name]


def test_a_table_with_rows_missing_is_told_and_leaves_no_copy(
    tmp_path: Path, table: TokenTable
) -> None:
    rows = DeltaTable(table.uri).to_pyarrow_table().slice(1)
    write_deltalake(table.uri, rows, mode="overwrite")
    damaged = StoredSequences(
        table.uri, 1, "train", table.splits["train"].rows, 32, tmp_path / "cache" / "x"
    )
    with pytest.raises(WorkError, match="is damaged"):
        damaged.sequence(0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, table: TokenTable) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot be copied to"):
        StoredSequences.of(table, "train", tmp_path / "file" / "cache").sequence(0)
