"""The step that measures candidates, chooses one and certifies it, whatever kind of model it is."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from millrace.export.certificate import Header, certify_candidates
from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import (
    LanguageCandidate,
    LanguageCertificate,
    LanguageStage,
)
from millrace.export.language.language_exporter import language_gates
from millrace.export.select import Gates
from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.tasks import export as module
from millrace.tasks.export import export_candidates
from millrace.tasks.kinds.steps import Exported

SNAPSHOT = Snapshot("texts", "uri", 3, "d" * 64, 10, TableSchema((), (), "text", ()), {}, {})
PIPELINE = Pipeline.model_validate(
    {
        "name": "lm",
        "dataset": {"source": "r.jsonl", "target": "text", "features": []},
        "model": {"family": "causal_lm"},
        "export": {"objective": "size"},
    }
)


def candidate(name: str, size: int, loss: float = 0.0, reason: str | None = None) -> Any:
    stage = LanguageStage(name, 10 * (1 + loss), loss)
    speed = LanguageSpeed(0.5, 0.5, {1: 1.0, 8: 1.0, 32: 1.0}, 8, 8)
    return LanguageCandidate(name, Path(name), f"digest of {name}", size, speed, stage, reason)


UNMADE = LanguageCandidate("unmade", reason="its conversion crashed")


@dataclass
class FakeExport:
    """An export whose candidates are known.

    Attributes:
        made: the candidates.
        folder: where a file of the evidence is.
        drawn: what is drawn: the candidates and the chosen one.
    """

    made: Sequence[LanguageCandidate]
    folder: Path
    drawn: list[Any]
    gates: Gates = language_gates()

    def candidates(self) -> Iterator[LanguageCandidate]:
        yield from self.made

    def certificate(
        self, header: Header, candidates: Sequence[Any], chosen: Any
    ) -> LanguageCertificate:
        assert tuple(candidates) == tuple(self.made)
        assert self.drawn == [(*self.made, chosen)], "while the chosen one is certified"
        return LanguageCertificate(**asdict(header), max_perplexity_increase=0.01)

    def model_files(self, chosen: Any) -> Mapping[str, Path]:
        return {"model": chosen.path}

    def evidence(self, chosen: Any, certificate: Any) -> Mapping[str, str | Path]:
        (self.folder / "golden.npz").touch()
        return {"golden.json": f"golden of {chosen.name}", "golden.npz": self.folder / "golden.npz"}


def exported(folder: Path, monkeypatch: pytest.MonkeyPatch, *made: LanguageCandidate) -> Exported:
    """Export candidates that are known."""
    installation, trained, drawn = Installation(folder, "", ""), object(), list[Any]()

    class Steps:
        def export(self, *given: object) -> FakeExport:
            assert given == (PIPELINE, installation, SNAPSHOT, trained, folder)
            return FakeExport(made, folder, drawn)

        def draw_export(self, export: FakeExport, candidates: Any, chosen: Any) -> Any:
            return (*candidates, chosen)

    monkeypatch.setattr(module, "steps_of", lambda kind: Steps())
    drawing = SimpleNamespace(add=drawn.append)
    given: Any = (kind_named("language"), PIPELINE, installation, SNAPSHOT, trained, folder)
    return export_candidates.fn(*given, drawing)


@pytest.fixture(autouse=True)
def _a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "measure_other_load", lambda: 0.0)


def test_the_best_candidate_is_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = (candidate("large", 9), candidate("small", 2), UNMADE)
    found = exported(tmp_path, monkeypatch, *made)
    assert found.chosen is made[1]
    assert found.candidates == made
    assert found.files == {"model": Path("small")}
    certificate, machine = found.certificate, this_machine()
    assert (certificate.model, certificate.candidate) == ("lm", "small")
    assert (certificate.digest, certificate.passed) == ("digest of small", True)
    assert (certificate.dataset, certificate.dataset_version) == ("texts", 3)
    assert certificate.dataset_digest == "d" * 64
    assert (certificate.machine, certificate.machine_kind) == (str(machine), machine.kind)
    assert certificate.forms == certify_candidates(made)
    assert certificate.chosen == made[1].stage


def test_the_evidence_lies_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exported(tmp_path, monkeypatch, candidate("small", 2))
    assert {name: file.name for name, file in found.evidence.items()} == {
        name: name for name in ("golden.json", "golden.npz", "certificate.json", "pipeline.yaml")
    }
    assert found.evidence["golden.json"].read_text() == "golden of small"
    assert found.evidence["certificate.json"].read_text() == found.certificate.to_json()
    kept = yaml.safe_load(found.evidence["pipeline.yaml"].read_text())
    assert (kept["name"], kept["export"]["objective"]) == ("lm", "size")


def test_where_none_passes_the_nearest_is_certified_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = (candidate("bad", 1, 0.3, "it lost 30%"), candidate("near", 2, 0.02, "it lost 2%"))
    with caplog.at_level(logging.WARNING, "millrace"):
        found = exported(tmp_path, monkeypatch, *made)
    assert found.chosen is made[1]
    assert found.certificate.passed is False
    assert caplog.messages == [
        "bad is refused: it lost 30%",
        "near is refused: it lost 2%",
        "no variant passes its gates; near is the closest to the limits: it lost 2%",
    ]


def test_where_none_can_be_used_the_reasons_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = candidate("broken", 1, float("nan"), "its answers are not finite")
    with pytest.raises(WorkError, match="no variant of the model can be used") as told:
        exported(tmp_path, monkeypatch, UNMADE, broken)
    assert told.value.seen == ("unmade: its conversion crashed; broken: its answers are not finite")
    assert not list(tmp_path.iterdir())


def test_how_a_candidate_was_found_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searched = LanguageCandidate(
        *("searched", tmp_path, "", 1, None, LanguageStage("searched", 10.0)),
        notes=("2 layers in float",),
    )
    with caplog.at_level(logging.INFO, "millrace"):
        exported(tmp_path, monkeypatch, searched)
    assert "searched: 2 layers in float" in caplog.messages


@pytest.mark.parametrize(("used", "told"), [(0.29, False), (0.31, True)])
def test_a_machine_that_others_use_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    used: float,
    told: bool,
) -> None:
    monkeypatch.setattr(module, "measure_other_load", lambda: used)
    with caplog.at_level(logging.WARNING, "millrace"):
        exported(tmp_path, monkeypatch, candidate("small", 2))
    assert ["other programs use 31% of this machine's cores" in m for m in caplog.messages] == (
        [True] if told else []
    )


def test_a_source_that_is_away_fails_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: FakeExport) -> Iterator[LanguageCandidate]:
        raise TransientError("the table cannot be read")
        yield

    monkeypatch.setattr(FakeExport, "candidates", away)
    with pytest.raises(TransientError, match="the table cannot be read"):
        exported(tmp_path, monkeypatch)
