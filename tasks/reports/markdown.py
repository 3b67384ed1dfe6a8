"""Markdown for MLflow and Prefect."""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines
    )


def key_of(*parts: str) -> str:
    """Return an artifact key: Prefect takes small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts)).strip("-")
