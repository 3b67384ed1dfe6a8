"""How many replicas a home may have."""

import pytest
from pydantic import ValidationError

from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.replicas.bounds import combine_bounds


def test_one_triton_without_any_file() -> None:
    assert combine_bounds([]) == ReplicasSpec(min=1, max=1)


def test_the_largest_of_all_files_counts() -> None:
    found = combine_bounds([ReplicasSpec(min=2), ReplicasSpec(min=1, max=3), ReplicasSpec()])
    assert (found.min, found.max) == (2, 3)


def test_one_file_that_only_wants_to_see_it_suffices() -> None:
    dry = ReplicasSpec(min=1, max=2, dry_run=True)
    assert combine_bounds([dry, ReplicasSpec(min=1, max=3)]).dry_run
    assert not combine_bounds([ReplicasSpec(dry_run=True), ReplicasSpec(min=1, max=3)]).dry_run


def test_the_fewest_alone_is_a_fixed_number() -> None:
    assert ReplicasSpec.model_validate({"min": 3}).max == 3


def test_the_most_is_not_less_than_the_fewest() -> None:
    with pytest.raises(ValidationError, match="max 1 is less than min 2"):
        ReplicasSpec(min=2, max=1)
