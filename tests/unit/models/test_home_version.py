from pathlib import Path

import pytest

from millrace.flows import settings
from millrace.models.common.errors import InputError
from millrace.models.common.home_version import FILE, NEWEST
from millrace.models.common.installation import Installation


def prepared(home: Path) -> Path:
    return Installation(home, "", str(home / "tables")).prepared().home


def test_a_new_home_has_the_newest_layout_and_is_private(tmp_path: Path) -> None:
    file = prepared(tmp_path / "home") / FILE
    assert file.read_text() == f"{NEWEST}\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_home_from_before_there_was_a_version_gets_one(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    assert (prepared(tmp_path) / FILE).read_text() == f"{NEWEST}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{NEWEST + 1}\n", "was made by a newer Millrace"),
        ("0\n", "was made by an older Millrace"),
        ("", "does not contain the layout version"),
        ("one", "does not contain the layout version"),
        ("-1", "does not contain the layout version"),
        ("\u0661", "does not contain the layout version"),
    ],
)
def test_a_home_of_another_layout_is_refused_and_left_as_it_is(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        prepared(tmp_path)
    assert "MILLRACE_HOME" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).read_text() == text


def test_a_command_that_only_reads_refuses_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_text("99")
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    with pytest.raises(InputError, match="was made by a newer Millrace"):
        settings.load().installation()


def test_a_home_that_is_not_there_is_not_made_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    settings.load().installation()
    assert not (tmp_path / "home").exists()
