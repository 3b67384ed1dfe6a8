"""A commit is tried again while other commits come first, and not for another reason."""

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from millrace.models.data.table_commit import ATTEMPTS, commit_with_retries


class Attempt:
    """An attempt to commit that fails with each of some errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7


@pytest.mark.parametrize("failures", [0, 1, ATTEMPTS - 1])
def test_the_result_is_that_of_the_attempt_that_committed(failures: int) -> None:
    attempt = Attempt(*[CommitFailedError("other")] * failures)
    assert commit_with_retries(attempt) == 7
    assert attempt.calls == failures + 1


def test_it_gives_up_with_the_last_error() -> None:
    attempt = Attempt(*(CommitFailedError(str(n)) for n in range(ATTEMPTS + 1)))
    with pytest.raises(CommitFailedError, match=str(ATTEMPTS - 1)):
        commit_with_retries(attempt)
    assert attempt.calls == ATTEMPTS


def test_another_error_is_raised_at_once() -> None:
    attempt = Attempt(DeltaError("disk full"))
    with pytest.raises(DeltaError, match="disk full"):
        commit_with_retries(attempt)
    assert attempt.calls == 1
