import os
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.artifact_store import require_own


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "http://127.0.0.1:1", str(tmp_path / "tables"))


@pytest.mark.parametrize("location", ["s3://bucket/x", "mlflow-artifacts:/1", "dbfs:/x"])
def test_what_is_not_local_is_the_stores_own_matter(
    installation: Installation, location: str
) -> None:
    require_own(location, installation)


def test_the_homes_artifacts_and_a_folder_of_ones_own_will_do(
    installation: Installation, tmp_path: Path
) -> None:
    require_own(f"{installation.artifacts.as_uri()}/digits", installation)
    require_own(str(tmp_path / "kept" / "1"), installation)


def test_a_folder_that_everybody_may_change_is_refused(
    installation: Installation, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(InputError, match="another user") as caught:
        require_own(str(shared / "1"), installation)
    assert f"everybody may write in {shared}" in str(caught.value.seen)


def test_a_name_in_the_folder_for_temporary_files_that_nobody_took_yet_is_refused(
    installation: Installation,
) -> None:
    with pytest.raises(InputError, match="another user"):
        require_own("file:///tmp/nobody-took-this-name/1", installation)


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder away")
def test_a_folder_of_somebody_else_is_refused(installation: Installation, tmp_path: Path) -> None:
    (theirs := tmp_path / "theirs").mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(InputError, match="another user") as caught:
        require_own((theirs / "1").as_uri(), installation)
    assert "belongs to the user 65534" in str(caught.value.seen)
