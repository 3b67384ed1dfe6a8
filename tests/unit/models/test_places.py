"""The home folder."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.models.common.installation import Installation


def test_many_may_prepare_a_home_at_once(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "home", "", "")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: installation.prepared(), range(400))) == [installation] * 400
    assert list(installation.run.iterdir()) == []
