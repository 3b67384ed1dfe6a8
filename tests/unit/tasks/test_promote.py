"""What a run recommends is what a release takes: the same decision, on a real registry."""

from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.installation import Installation
from millrace.models.registry.gates import LiveFigures, Promotion
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHALLENGER, CHAMPION
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release
from millrace.tasks.feedback_history import LiveDay, live_figures, store_days
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.register import promote
from millrace.tasks.release import MlflowRegistry
from tests.integration.planted import Planted, good, ingest_rows, plant


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    home = tmp_path_factory.mktemp("home")
    return Installation(home, f"sqlite:///{home}/mlflow.db", str(home / "tables")).prepared()


def planted(installation: Installation, name: str, *versions: dict[str, Any]) -> list[Planted]:
    """Plant versions, whose true metric seed 0 makes 1.0 and seed 3 less."""
    ingest_rows(installation, name)
    return [plant(installation, name, good(each.pop("seed", 0), **each)) for each in versions]


def make_live(installation: Installation, version: Planted) -> None:
    registry = registry_of(installation)
    found = registry.version(version.name, version.number)
    registry.set_alias(found, CHAMPION)
    ledger_of(installation).append(Release(version.name, "live", version.number, found.digest))


def promoted(installation: Installation, version: Planted, metric: float) -> Promotion:
    registry = registry_of(installation)
    found = registry.version(version.name, version.number)
    pipeline = pipeline_of(registry.fetch(found))
    return promote(pipeline, installation, found, None, metric)


def refusal_of_a_release(
    installation: Installation, version: Planted, previous: int | None
) -> str | None:
    return MlflowRegistry(installation).refusal(version.name, version.number, previous)


def alias(installation: Installation, name: str) -> int | None:
    found = registry_of(installation).by_alias(name, CHALLENGER)
    return found and found.version


def test_a_worse_version_is_no_challenger_of_what_is_live(installation: Installation) -> None:
    first, second = planted(installation, "worse", {}, {"seed": 3, "metric": 0.4})
    make_live(installation, first)
    found = promoted(installation, second, 0.4)
    reason = refusal_of_a_release(installation, second, 1)
    assert reason is not None
    assert found.release == f"a release would refuse it: {reason}"
    assert (found.challenger, alias(installation, "worse")) == (False, None)
    assert found.beside is not None
    assert (found.beside.version, found.beside.is_live, found.beside.metric) == (1, True, 1.0)
    assert found.beside.size_bytes == (first.folder / "model.onnx").stat().st_size


def test_one_as_good_is(installation: Installation) -> None:
    first, second = planted(installation, "alike", {}, {})
    make_live(installation, first)
    found = promoted(installation, second, 1.0)
    assert refusal_of_a_release(installation, second, 1) is None
    assert (found.challenger, alias(installation, "alike")) == (True, 2)
    assert found.release.startswith("a release would take it")


def test_a_missing_approval_is_no_refusal_but_is_said(installation: Installation) -> None:
    require = {"promotion": {"require": {"approval": True}}}
    (first,) = planted(installation, "approval", {"pipeline": require})
    found = promoted(installation, first, 1.0)
    assert refusal_of_a_release(installation, first, None) is not None
    assert found.challenger
    assert "approved it with the tag millrace.approved_by" in found.release


def test_missing_labels_are_no_refusal_but_are_said_until_they_come(
    installation: Installation,
) -> None:
    require = {"live_metric": {"value": 0.8, "labels": 50}}
    spec = {"promotion": {"mode": "auto", "require": require}}
    (first,) = planted(installation, "labelled", {"pipeline": spec})
    found = promoted(installation, first, 1.0)
    assert "0 of its own predictions" in (refusal_of_a_release(installation, first, None) or "")
    assert (found.challenger, found.champion) == (True, False)
    assert "once 50 of its own predictions have a label" in found.release
    days = [
        LiveDay("2026-11-20", 1, 40, "accuracy", 1.0),
        LiveDay("2026-11-21", 1, 60, "accuracy", 0.7, source="online"),
        LiveDay("2026-11-21", 2, 999, "accuracy", 0.1),
    ]
    store_days(installation, "labelled", days)
    assert live_figures(installation, "labelled", 1) == LiveFigures(
        "accuracy", pytest.approx(0.82), 100
    )
    assert refusal_of_a_release(installation, first, None) is None


def test_a_missing_serving_profile_is_no_refusal_but_is_said_until_it_is_there(
    installation: Installation,
) -> None:
    serving = {"slo": {"p99_ms": 20, "rate": 200}}
    spec = {"promotion": {"mode": "auto", "require": {"slo": True}}, "serving": serving}
    (first,) = planted(installation, "profiled", {"pipeline": spec})
    found = promoted(installation, first, 1.0)
    assert "no serving profile" in (refusal_of_a_release(installation, first, None) or "")
    assert (found.challenger, found.champion) == (True, False)
    assert "promotion.require.slo asks for a serving profile" in found.reason
    assert "once its goal serving.slo is proved" in found.release


def test_what_was_refused_is_nothing_to_beat(installation: Installation) -> None:
    """The alias is on a bad version that no release took: what is live counts."""
    first, second, third = planted(
        installation, "beside", {"seed": 3, "metric": 0.4}, {}, {"seed": 3, "metric": 0.4}
    )
    make_live(installation, first)
    digest = registry_of(installation).version("beside", 2).digest
    ledger_of(installation).append(Release("beside", "refused", 2, digest, reason="too slow"))
    client(installation.tracking_uri).set_registered_model_alias("beside", CHAMPION, "2")
    found = promoted(installation, third, 0.4)
    assert found.challenger
    assert found.beside is not None
    assert found.beside.version == 1


def test_where_nothing_is_live_the_champion_is_held_beside(
    installation: Installation, tmp_path: Path
) -> None:
    first, second = planted(installation, "unreleased", {}, {"seed": 3, "metric": 0.4})
    client(installation.tracking_uri).set_registered_model_alias("unreleased", CHAMPION, "1")
    found = promoted(installation, second, 0.4)
    assert not found.challenger
    assert found.beside is not None
    assert not found.beside.is_live
