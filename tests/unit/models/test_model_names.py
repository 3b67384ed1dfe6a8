import pytest

from millrace.models.common.errors import InputError
from millrace.models.registry.model_names import name_fault, require_model_name
from millrace.serving.triton.server_index import ARMS, TRIAL, is_helper_model

BAD = [
    *("a\x00b", "../../x", "a/b", "x\ny", "x\n", "\U0001f600", "", ".", "..", "a..b", "a."),
    *("\x1b[31mred", "\u202eabc", ".hidden", "a b", "n" * 300, "a'b", "a%sb", "-x", "é", "a\\b"),
    *(f"digits{TRIAL}1-ab", f"digits{ARMS}"),
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_cannot_be_used_is_told_in_one_printable_line(name: str) -> None:
    with pytest.raises(InputError) as told:
        require_model_name(name)
    assert "cannot be used" in told.value.what
    assert told.value.what.isprintable()


@pytest.mark.parametrize("name", ["digits", "con", "a", "A.b-c_d", "0", "n" * 128])
def test_other_names_are_fine(name: str) -> None:
    assert name_fault(name) is None
    assert not is_helper_model(name)
