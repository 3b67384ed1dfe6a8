"""What is printed as JSON is JSON."""

import json

import pytest

from millrace.flows.console import print_json


def refuse(word):
    raise ValueError(f"{word} is no JSON")


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_lacks_are_null(number, capsys):
    print_json({"high": number, "all": [1.5, (number,)]})
    shown = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert shown == {"high": None, "all": [1.5, [None]]}
