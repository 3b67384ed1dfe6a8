import pytest
from pydantic import ValidationError

from millrace.models.config.retention_spec import MOST_DAYS, RetentionSpec


@pytest.mark.parametrize("key", ["artifacts", "predictions", "logs", "staging"])
def test_days_before_the_first_date_are_refused(key: str) -> None:
    assert RetentionSpec(**{key: MOST_DAYS})
    with pytest.raises(ValidationError, match=key):
        RetentionSpec(**{key: 3_000_000})


def test_true_is_no_number() -> None:
    """It would keep one version, and remove the others."""
    with pytest.raises(ValidationError, match="true is not a number"):
        RetentionSpec(versions=True)
