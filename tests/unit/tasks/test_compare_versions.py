"""`millrace compare`: two versions on the same rows of a real registry and a real snapshot."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.flows import tool_variables
from millrace.flows.cli import main, version_commands
from millrace.flows.cli.command_setup import load_settings
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_pages import describe_verdict
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION, COMPARED_TAG
from millrace.tasks.compare_versions import (
    _caution,
    compare_versions,
    describe_comparison,
    describe_slices,
)
from millrace.tasks.register import promote
from tests.integration.planted import good, ingest_rows, plant

NAME = "compared"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("home")
    made = Installation(folder, f"sqlite:///{folder}/mlflow.db", str(folder / "tables")).prepared()
    ingest_rows(made, NAME, 2000)
    for seed in (3, 0, 0):
        plant(made, NAME, good(seed))
    return made


def test_a_better_version_is_called_better_with_its_interval(home: Installation) -> None:
    found = compare_versions(home, f"{NAME}/1", f"{NAME}/2")
    assert found.verdict == "better"
    assert found.result.second == 1.0
    assert found.result.difference == pytest.approx(1 - found.result.first)
    assert found.result.low < found.result.difference <= found.result.high
    assert 150 < found.result.rows < 250
    assert compare_versions(home, f"{NAME}/2", f"{NAME}/1").verdict == "worse"


def test_two_alike_show_no_difference(home: Installation) -> None:
    found = compare_versions(home, f"{NAME}/2", f"{NAME}/3")
    assert (found.verdict, found.result.p_value) == ("no difference shown", 1.0)


def test_classes_are_slices_and_the_worst_is_first(home: Installation) -> None:
    found = compare_versions(home, f"{NAME}/2", f"{NAME}/1")
    assert {each.column for each in found.slices} == {"t"}
    differences = [each.result.difference for each in found.slices if not each.is_small]
    assert differences == sorted(differences)
    assert any(each.verdict == "worse" for each in found.slices)
    assert sum(each.result.rows for each in found.slices) == found.result.rows
    assert len(list(describe_slices(found))) == len(found.slices)


def test_a_table_says_what_it_is_about(home: Installation) -> None:
    rows = dict(describe_comparison(compare_versions(home, f"{NAME}/1", f"{NAME}/2")))
    assert rows["verdict"] == "compared version 2 is better than compared version 1"
    assert rows["accuracy"].split(" → ")[1].startswith("1, +0.")
    assert rows["variant"] == "onnx-fp32"
    assert "a release" in rows


def test_one_alone_is_compared_with_the_champion(home: Installation) -> None:
    registry = registry_of(home)
    with pytest.raises(InputError, match="no registered version"):
        compare_versions(home, None, f"{NAME}/2")
    registry.set_alias(registry.version(NAME, 1), CHAMPION)
    assert compare_versions(home, None, f"{NAME}/2").first.version == 1
    run = registry.version(NAME, 3).run_id
    assert compare_versions(home, NAME, run).second.version == 3


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (f"{NAME}/2", f"{NAME}/2", "with itself"),
        (f"{NAME}/2", f"{NAME}/9", "has no compared version 9"),
        (f"{NAME}/two", f"{NAME}/1", "'two' is no version's number"),
        ("0" * 32, f"{NAME}/1", "registered no version"),
        ("other", f"{NAME}/1", "no registered version 'other'"),
    ],
)
def test_what_cannot_be_compared_is_said(
    home: Installation, first: str, second: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compare_versions(home, first, second)


def test_a_column_that_is_not_there_is_said(home: Installation) -> None:
    with pytest.raises(InputError, match="no column 'tt' to compare by"):
        compare_versions(home, f"{NAME}/1", f"{NAME}/2", ["tt"])


def test_the_command_has_one_word_at_the_top(
    home: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_HOME", str(home.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", home.tracking_uri)
    # `prepare` sends this process's standard error to a log.
    monkeypatch.setattr(version_commands, "prepare", lambda: tool_variables.apply(load_settings()))
    words = ["compare", f"{NAME}/1", f"{NAME}/2"]
    done = CliRunner().invoke(main.make_app(("compare",)), words)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "better"
    assert "by slice" in done.stdout
    shown = json.loads(CliRunner().invoke(main.make_app(("compare",)), [*words, "--json"]).stdout)
    assert shown["verdict"] == "better"
    assert shown["result"]["difference"] > 0


def test_a_run_says_how_its_version_compares(home: Installation, tmp_path: Path) -> None:
    from millrace.tasks.kinds.certified import pipeline_of

    registry = registry_of(home)
    registry.set_alias(registry.version(NAME, 1), CHAMPION)
    version = registry.version(NAME, 2)
    decided = promote(pipeline_of(registry.fetch(version)), home, version, None, 1.0)
    assert decided.beside is not None
    assert decided.beside.verdict.startswith("better: accuracy ")
    tags = registry.version(NAME, 2).tags
    assert tags[COMPARED_TAG] == f"version 1: {decided.beside.verdict}"
    for _ in range(2):  # a step that is tried again
        registry.add_to_description(version, describe_verdict(tags[COMPARED_TAG]))
    page = client(home.tracking_uri).get_model_version(NAME, "2").description
    assert page.count("Compared with version 1: better") == 1


def test_another_key_or_split_is_a_caution() -> None:
    def pipeline(**dataset: Any) -> Pipeline:
        given = {"source": "x.csv", "target": "y", **dataset}
        return Pipeline.model_validate({"name": "p", "dataset": given, "model": {"family": "mlp"}})

    assert _caution(pipeline(), pipeline(features=["a"])) is None
    for other in (
        pipeline(key="id"),
        pipeline(split={"train": 0.5, "validation": 0.2, "test": 0.3}),
    ):
        assert "may have been trained on these rows" in str(_caution(pipeline(), other))
