from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import TransientError
from millrace.serving.release import ledger as module
from millrace.serving.release.ledger import MAX_TRIES, Ledger
from millrace.serving.release.release_state import Release


@pytest.mark.parametrize(
    ("collisions", "kept"), [(0, True), (MAX_TRIES - 1, True), (MAX_TRIES, False)]
)
def test_an_event_that_others_collide_with_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collisions: int, kept: bool
) -> None:
    write, left = module.write_deltalake, [None] * collisions

    def colliding(*arguments: object, **options: object) -> None:
        if left:
            left.pop()
            raise CommitFailedError("Metadata changed since last commit")
        write(*arguments, **options)

    monkeypatch.setattr(module, "write_deltalake", colliding)
    ledger = Ledger(str(tmp_path / "releases"))
    if not kept:
        with pytest.raises(TransientError, match="cannot be written"):
            ledger.append(Release("m", "live", 1))
    else:
        ledger.append(Release("m", "live", 1))
    assert [event.version for event in ledger.releases("m")] == [1] * kept
