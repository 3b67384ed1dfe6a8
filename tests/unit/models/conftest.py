import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer, learn_tokenizer

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "import os\n\n\nfor name in os.listdir('.'):\n    print(name)\n",
    "class Node:\n    def __init__(self, value):\n        self.value = value\n",
] * 5


@pytest.fixture(scope="session")
def texts() -> Sequence[str]:
    return TEXTS


@pytest.fixture(scope="session")
def bpe() -> LanguageTokenizer:
    return learn_tokenizer(TEXTS, 320)


@pytest.fixture(scope="session")
def chat_bpe() -> LanguageTokenizer:
    return learn_tokenizer(TEXTS, 320, chat=True)


@pytest.fixture
def embedded(tmp_path: Path) -> Installation:
    """Places of their own, without services."""
    return Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables")).prepared()


@pytest.fixture
def ingest_text(tmp_path: Path, embedded: Installation) -> Callable[..., Snapshot]:
    """Write rows as JSON lines and ingest them for a language model."""

    def ingested(rows: Sequence[Mapping[str, Any]], **dataset: Any) -> Snapshot:
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        values = {
            "name": "t",
            "dataset": {"source": "rows.jsonl", "target": "text", "features": [], **dataset},
            "model": {"family": "causal_lm"},
        }
        return ingest.ingest(Pipeline.model_validate(values).with_folder(tmp_path), embedded)

    return ingested
