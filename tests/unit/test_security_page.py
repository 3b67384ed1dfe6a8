"""docs/security.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def named() -> set[tuple[str, str]]:
    """Return every file and function that the page names; one without a file is of the last."""
    found, file = set(), ""
    for path, function in NAMED.findall((ROOT / "docs/security.md").read_text()):
        file = path or file
        if path or function:
            found.add((file, function))
    return found


def test_every_test_that_the_page_names_exists() -> None:
    missing = [
        (file, function)
        for file, function in named()
        if f"def {function}(" not in (ROOT / file).read_text() + "def ("
    ]
    assert missing == []
    assert len(named()) > 30
