"""`millrace lineage` on the command line."""

from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.models.common.errors import InputError


def test_a_date_that_is_none_is_refused_as_such():
    words = ["lineage", "shop", "--row", "000004", "--date", "bad"]
    done = CliRunner().invoke(main.make_app(("lineage", "certify")), words)
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "the date is not valid"
