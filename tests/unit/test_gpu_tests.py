"""The tests of `tests/gpu` can be read without a GPU: nothing else imports them here."""

from importlib import import_module

import pytest

from tests.docs_pages import ROOT

MODULES = sorted(path.stem for path in (ROOT / "tests/gpu").glob("test_*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_what_a_gpu_test_imports_is_there(name):
    marks = import_module(f"tests.gpu.{name}").pytestmark
    assert "gpu" in [each.name for each in (marks if isinstance(marks, list) else [marks])]
