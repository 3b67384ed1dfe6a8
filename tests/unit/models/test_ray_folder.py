"""The folder of the embedded Ray is nobody else's, and nobody can stop it from being made."""

from pathlib import Path

import pytest

from millrace.models.common import ray_folder as module
from millrace.models.common.errors import WorkError
from millrace.models.common.ray_folder import is_private, ray_folder, ray_folders


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_made_once_and_private(base: Path) -> None:
    found = ray_folder()
    assert found == ray_folder()
    assert (found.parent.parent, found.parent.stat().st_mode & 0o777) == (base, 0o700)
    assert [*ray_folders()] == [found]


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o777])
def test_one_that_others_may_enter_is_not_taken(mode: int) -> None:
    first = ray_folder().parent
    first.chmod(mode)
    assert ray_folder().parent != first
    assert is_private(ray_folder().parent)


def test_a_link_is_not_followed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = ray_folder().parent
    first.rmdir()
    first.symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert ray_folder().parent != first
    assert not ray_folder().parent.is_symlink()


def test_without_a_place_it_says_what_to_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(base / "missing"))
    with pytest.raises(WorkError, match="RAY_TMPDIR"):
        ray_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(base))
    monkeypatch.setattr(module, "is_private", lambda _: False)
    with pytest.raises(WorkError, match="and 19 similar paths exist"):
        ray_folder()
