"""What a network asks for is counted before it is built, however large it is."""

from pathlib import Path

import pytest

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.tasks.kinds.graph.graph_plan import count_family
from millrace.tasks.plan import data_facts

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, in_features, num_classes, hidden):
        super().__init__(nn.Linear(in_features, hidden), nn.Linear(hidden, num_classes))
"""
LARGE = 10**12


@pytest.fixture
def count(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Return a function that counts the network of a model in a table of a number and a text."""
    installation = Installation(tmp_path / "home", "", str(tmp_path / "tables"))
    (tmp_path / "net.py").write_text(NET)
    rows = "".join(f"{n},word {n},{n % 2}\n" for n in range(40))
    (tmp_path / "r.csv").write_text(f"x,words,y\n{rows}")

    def counted(feature: str, **model: object):  # type: ignore[no-untyped-def]
        columns = {"words": {"type": "text"}} if feature == "words" else {}
        dataset = {"source": "r.csv", "target": "y", "features": [feature], "columns": columns}
        pipeline = Pipeline.model_validate({"name": "p", "dataset": dataset, "model": model})
        pipeline = pipeline.with_folder(tmp_path)
        facts = data_facts(pipeline, installation, call_functions=False)
        assert facts is not None
        return count_family(pipeline, facts)

    return counted


def test_a_class_that_no_machine_holds_is_counted(count) -> None:  # type: ignore[no-untyped-def]
    cost = count("x", family="net:Net", params={"hidden": LARGE})
    assert cost.parameters == 4 * LARGE + 2


def test_a_class_that_fits_is_counted(count) -> None:  # type: ignore[no-untyped-def]
    assert count("x", family="net:Net", params={"hidden": 10}).parameters == 42


def test_a_text_classifier_that_no_machine_holds_is_counted(count) -> None:  # type: ignore[no-untyped-def]
    wide = {"hidden_size": 2**20, "num_hidden_layers": 2, "num_attention_heads": 2}
    assert count("words", family="text_classifier", params=wide).parameters > 2 * 2**42
