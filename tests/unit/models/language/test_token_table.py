import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.config.training_spec import ModelSpec
from millrace.models.data.derived_tables import remove_derived
from millrace.models.data.snapshots import Snapshot, scan
from millrace.models.data.table_files import SUPERSEDED
from millrace.models.language.corpus import token_table
from millrace.models.language.corpus.documents import documents_of
from millrace.models.language.corpus.token_table import (
    SPLITS,
    TokenTable,
    make_token_table,
    open_token_table,
)
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.tasks.retention.forget import forget

Ingest = Callable[..., Snapshot]
SHARES = SplitSpec()


def model(**tokenizer: Any) -> ModelSpec:
    given = {"vocab_size": 300, "max_tokens": 32, **tokenizer}
    return ModelSpec.model_validate({"family": "causal_lm", "tokenizer": given})


def corpus(rows: int = 200) -> list[dict[str, str]]:
    return [
        {"path": f"{n}.py", "text": f"def f{n}(x):\n    return x + {n}\n" * (1 + n % 7)}
        for n in range(rows)
    ]


def versions(installation: Installation, kind: str) -> int:
    uri = installation.table(kind, "t")
    return DeltaTable(uri).version() + 1 if Path(uri, "_delta_log").exists() else 0


def rows_of(table: TokenTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        DeltaTable(table.uri, version=table.version).to_pyarrow_table().to_pylist()
    )
    return found


def test_every_document_of_a_split_is_there_token_by_token(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    snapshot = ingest_text(corpus(), key=["path"])
    table = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    tokenizer, rows = table.tokenizer(), rows_of(table)
    for split in SPLITS:
        own = [row for row in rows if row["split"] == split]
        assert sorted(row["position"] for row in own) == list(range(len(own)))
        wanted = [
            document.ids
            for batch in scan(snapshot, split, SHARES)
            for document in documents_of(batch, snapshot.schema, tokenizer)
            if document is not None
        ]
        pieces = [
            piece.tolist()
            for row in own
            for piece in np.split(row["input_ids"], np.cumsum(row["lengths"])[:-1])
        ]
        cut = [ids[at : at + 32].tolist() for ids in wanted for at in range(0, len(ids), 32)]
        assert sorted(pieces) == sorted(cut)
        counts = table.splits[split]
        assert (counts.rows, counts.documents) == (len(own), len(wanted))
        assert counts.tokens == sum(map(len, wanted))
        assert counts.loss_tokens == counts.tokens - len(pieces)
    assert all(row["answer"] is None for row in rows)
    assert all(len(row["input_ids"]) <= 32 for row in rows)


def test_the_same_again_writes_nothing(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    snapshot = ingest_text(corpus(), key=["path"])
    made = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    again = make_token_table(
        ingest_text(corpus(), key=["path"]), SHARES, model(), tmp_path, embedded
    )
    assert made.created
    assert not again.created
    assert (again.version, again.splits, again.fingerprint) == (0, made.splits, made.fingerprint)
    assert (versions(embedded, "tokens"), versions(embedded, "tokenizers")) == (1, 1)
    assert open_token_table(embedded, "t") == again
    assert again.tokenizer() == made.tokenizer()


def test_another_context_tokenizer_split_or_snapshot_makes_a_version_and_the_old_ones_stay(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    first = ingest_text(corpus(), key=["path"])
    made = [
        make_token_table(first, SHARES, model(), tmp_path, embedded),
        make_token_table(first, SHARES, model(max_tokens=16), tmp_path, embedded),
        make_token_table(first, SHARES, model(vocab_size=280), tmp_path, embedded),
        make_token_table(
            first, SplitSpec(train=0.6, validation=0.2, test=0.2), model(), tmp_path, embedded
        ),
        make_token_table(
            ingest_text(corpus(210), key=["path"]), SHARES, model(), tmp_path, embedded
        ),
    ]
    assert [table.version for table in made] == [0, 1, 2, 3, 4]
    assert len({table.fingerprint for table in made}) == 5
    found = open_token_table(embedded, "t", made[0].fingerprint)
    assert (found.version, found.tokenizer().digest) == (0, made[0].tokenizer_digest)
    assert len(rows_of(found)) == sum(counts.rows for counts in made[0].splits.values())
    back = make_token_table(first, SHARES, model(), tmp_path, embedded)
    assert (back.version, back.created) == (0, False)


def test_a_tokenizer_of_a_folder_is_used_and_known_by_its_files(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation, bpe: LanguageTokenizer
) -> None:
    bpe.write(tmp_path / "one")
    bpe.write(tmp_path / "two")
    snapshot = ingest_text(corpus(), key=["path"])
    made = make_token_table(snapshot, SHARES, model(source="one"), tmp_path, embedded)
    again = make_token_table(snapshot, SHARES, model(source="two"), tmp_path, embedded)
    assert again.fingerprint == made.fingerprint
    ids = made.tokenizer().plain.encode("import os").ids
    assert ids == bpe.plain.encode("import os").ids


def test_the_tokenizer_is_learnt_from_the_train_split_alone(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    rows = corpus(300)
    snapshot = ingest_text(rows, key=["path"])
    held_out = {
        key
        for split in ("validation", "test")
        for batch in scan(snapshot, split, SHARES, columns=["_key"])  # type: ignore[arg-type]
        for key in batch["_key"].to_pylist()
    }
    for row in rows:
        if row["path"] in held_out:
            row["text"] = "zq" * 200
    table = make_token_table(ingest_text(rows, key=["path"]), SHARES, model(), tmp_path, embedded)
    assert "zq" not in table.tokenizer().plain.get_vocab()


def test_instructions_and_chats_keep_which_tokens_are_answers(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    said = [{"prompt": f"{n} + 1?", "text": f"{n + 1}"} for n in range(100)]
    said += [{"prompt": "and?", "text": ""}]
    columns = {"text": {"type": "text"}}
    snapshot = ingest_text(said, features=["prompt"], key=["prompt"], columns=columns)
    table = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    assert sum(counts.skipped for counts in table.splits.values()) == 1
    rows = rows_of(table)
    answered = sum(sum(row["answer"]) for row in rows)
    assert answered == sum(counts.loss_tokens for counts in table.splits.values())
    assert answered == sum(len(str(n + 1)) + 1 for n in range(100))

    chats = [
        {
            "text": [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": "!"},
            ]
        }
        for row in said
    ]
    snapshot = ingest_text(chats, columns={"text": {"type": "messages"}})
    table = make_token_table(snapshot, SHARES, model(max_tokens=64), tmp_path, embedded)
    assert sum(sum(row["answer"]) for row in rows_of(table)) == 2 * len(chats)


def test_progress_is_told_up_to_the_last_document(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_table, "READ_ROWS", 10)
    told: list[int] = []
    snapshot = ingest_text(corpus(), key=["path"])
    make_token_table(snapshot, SHARES, model(), tmp_path, embedded, told.append)
    assert told == sorted(told)
    assert told[-1] == 200
    assert len(told) > 10


def test_too_few_documents_are_told(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    with pytest.raises(InputError, match="too few documents") as caught:
        make_token_table(ingest_text(corpus(2)), SHARES, model(), tmp_path, embedded)
    assert "train" in str(caught.value)
    assert versions(embedded, "tokens") == 0


def test_documents_that_are_the_same_are_all_there(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    rows = [{"path": f"{n}.py", "text": "x = 1\n"} for n in range(100)]
    table = make_token_table(ingest_text(rows, key=["path"]), SHARES, model(), tmp_path, embedded)
    assert sum(counts.documents for counts in table.splits.values()) == 100


def test_odd_documents_go_all_the_way(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    rows = corpus(100) + [
        {"path": f"odd{n}", "text": text}
        for n, text in enumerate(["", "a\x00b", "\n", "\U0001f600", "<|endoftext|>", "x" * 100_000])
    ]
    table = make_token_table(ingest_text(rows, key=["path"]), SHARES, model(), tmp_path, embedded)
    assert sum(counts.documents for counts in table.splits.values()) == 105
    assert sum(counts.skipped for counts in table.splits.values()) == 1


def test_a_run_that_is_overtaken_is_told_and_the_faster_one_stays(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = ingest_text(corpus(), key=["path"])
    make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    keep = token_table.store_tokenizer

    def slow(*given: Any) -> None:
        keep(*given)
        monkeypatch.setattr(token_table, "store_tokenizer", keep)
        make_token_table(snapshot, SHARES, model(max_tokens=16), tmp_path, embedded)

    monkeypatch.setattr(token_table, "store_tokenizer", slow)
    with pytest.raises(TransientError, match="published a token table of 't' first"):
        make_token_table(snapshot, SHARES, model(max_tokens=8), tmp_path, embedded)
    assert open_token_table(embedded, "t").context == 16


_KILLED = """
import os, signal, sys
from pathlib import Path
from millrace.models.language.corpus import token_table
from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import open_snapshot
from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.config.training_spec import ModelSpec

home, after = Path(sys.argv[1]), int(sys.argv[2])
token_table.READ_ROWS = 10
installation = Installation(home, "", str(home / "tables"))

def told(rows):
    if rows >= after:
        os.kill(os.getpid(), signal.SIGKILL)

spec = {"family": "causal_lm", "tokenizer": {"vocab_size": 300, "max_tokens": 32}}
token_table.make_token_table(
    open_snapshot(installation, "t"), SplitSpec(), ModelSpec.model_validate(spec), home,
    installation, told
)
"""


@pytest.mark.parametrize("after", [10, 200])
def test_a_kill_leaves_nothing_to_be_seen_and_the_next_run_is_whole(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation, after: int
) -> None:
    snapshot = ingest_text(corpus(), key=["path"])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(embedded.home), str(after)],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert (versions(embedded, "tokens"), versions(embedded, "tokenizers")) == (0, 0)
    made = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    assert (made.created, made.version) == (True, 0)
    assert sum(counts.documents for counts in made.splits.values()) == 200


def test_a_table_that_is_not_there_is_told(embedded: Installation) -> None:
    with pytest.raises(InputError, match="no token table of 'nothing'"):
        open_token_table(embedded, "nothing")


def test_tokens_stay_as_long_as_the_rows_that_they_were_made_of(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    first = ingest_text(corpus(), key=["path"])
    second = ingest_text(corpus(210), key=["path"])
    old = make_token_table(first, SHARES, model(), tmp_path, embedded)
    short = make_token_table(second, SHARES, model(max_tokens=16), tmp_path, embedded)
    new = make_token_table(second, SHARES, model(), tmp_path, embedded)
    soon = datetime.now(UTC)
    later = soon + SUPERSEDED + timedelta(hours=1)
    kept = {second.digest}
    assert remove_derived(old.uri, kept, soon, dry_run=False).files == 0
    assert remove_derived(old.uri, {first.digest, *kept}, later, dry_run=False).files == 0
    assert remove_derived(old.uri, kept, later, dry_run=True).files == 1
    assert remove_derived(old.uri, kept, later, dry_run=False).files == 1
    for table in (short, new):
        assert open_token_table(embedded, "t", table.fingerprint).version == table.version
        assert rows_of(table)
    assert remove_derived(old.tokenizer_uri, kept, later, dry_run=False).files == 0
    assert old.tokenizer().digest == old.tokenizer_digest


def test_tokens_whose_files_are_gone_are_made_again(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    snapshot = ingest_text(corpus(), key=["path"])
    old = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    make_token_table(snapshot, SHARES, model(max_tokens=16), tmp_path, embedded)
    rows = rows_of(old)
    later = datetime.now(UTC) + SUPERSEDED + timedelta(hours=1)
    remove_derived(old.uri, (), later, dry_run=False)
    with pytest.raises(InputError, match="there is no token table of 't'"):
        open_token_table(embedded, "t", old.fingerprint)
    again = make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    assert again.created
    assert (again.version, again.fingerprint) == (2, old.fingerprint)
    assert sorted(map(str, rows_of(again))) == sorted(map(str, rows))


def test_the_tokens_of_a_forgotten_text_go_though_its_snapshot_is_an_earlier_one(
    tmp_path: Path, ingest_text: Ingest, embedded: Installation
) -> None:
    secret = {"path": "secret.py", "text": "zebra = 'zebra zebra zebra'\n" * 9}
    for rows in ([*corpus(), secret], corpus()):
        snapshot = ingest_text(rows, key=["path"])
        make_token_table(snapshot, SHARES, model(), tmp_path, embedded)
    assert versions(embedded, "tokens") == 2
    forget(embedded, "t", ["secret.py"], lambda what: pytest.fail(what))
    assert versions(embedded, "tokens") == versions(embedded, "tokenizers") == 0
    assert make_token_table(snapshot, SHARES, model(), tmp_path, embedded).created
    files = (file for file in Path(embedded.home).rglob("*") if file.is_file())
    assert not [file for file in files if b"zebra" in file.read_bytes()]
