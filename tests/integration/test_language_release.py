"""Releases of language models on a real Triton: what goes live, and what does not."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.export.certificate import CertifiedVariant
from millrace.export.language.language_certificate import LanguageCertificate, LanguageStage
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.apply import Request
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.reconcile import reconcile
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.streams.stream_request import Sampling
from millrace.tasks.kinds.language.language_certify import certify_live_answers, faults_of
from tests.integration.backends import kill_backends
from tests.integration.file_registry import FileRegistry
from tests.integration.ports import free_endpoint
from tests.language_model import Made, make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

TEXT = Path(os.__file__).read_text()
PROMPTS = tuple(TEXT[start : start + 40] for start in range(0, 4 * 577, 577))
TOKENS, STREAMS = 12, 32
CERTIFICATE = LanguageCertificate(
    model="asked",
    candidate="openvino-fp32",
    digest="f" * 64,
    dataset="texts",
    dataset_version=0,
    dataset_digest="d" * 64,
    max_perplexity_increase=0.01,
    passed=True,
    forms=(CertifiedVariant("openvino-fp32", stage=LanguageStage("openvino-fp32", 10.0)),),
)
LONG = Sampling(temperature=0, max_tokens=160, ignore_eos=True)


class Line:
    """A server, a registry of files beside it, and two models of random weights."""

    def __init__(
        self, client: TritonClient, installation: Installation, models: tuple[Made, Made]
    ) -> None:
        self.client, self.installation, self.models = client, installation, models
        self.registry, self.ledger = (
            FileRegistry(installation.home),
            Ledger(str(installation.home / "releases")),
        )

    def golden(self, seed: int) -> GoldenPrompts:
        """Return what transformers answers with the weights of a seed, 0 or 1."""
        answers = tuple(self.models[seed].greedy(prompt, TOKENS) for prompt in PROMPTS)
        return GoldenPrompts(PROMPTS, answers, TOKENS, exact=True)

    def register(self, name: str, version: int, seed: int, **serving: object) -> None:
        files, expected = self.models[seed].folder, self.golden(seed)
        self.registry.register_language(name, version, files, expected, **serving)

    def promote(self, name: str, version: int) -> Outcome:
        self.registry.champions[name] = version
        return self.release(name)

    def release(self, name: str) -> Outcome:
        repository = Repository(self.installation.model_repository, self.installation.staging)
        endpoints = (self.client.endpoint,)
        request = Request("a test")
        return reconcile(self.registry, self.ledger, repository, endpoints, request, [name])[0]

    def status(self, name: str, version: int) -> str:
        return self.registry.written.get((name, version), {}).get("millrace.status", "")

    def answers(self, name: str) -> tuple[str, ...]:
        sampling = Sampling(temperature=0, max_tokens=TOKENS)
        answers = (self.client.streams.complete(name, prompt, sampling) for prompt in PROMPTS)
        return tuple(piece.texts[0] for piece in answers)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    made = tmp_path_factory.mktemp("made")
    models = (make(made / "0", TEXT), make(made / "1", TEXT, seed=1))
    installation = Installation(tmp_path_factory.mktemp("home"), "", "").prepared()
    with server.running(installation, free_endpoint()) as client:
        yield Line(client, installation, models)


def test_golden_prompts_are_answered_without_a_server(line: Line) -> None:
    line.register("apart", 1, 0)
    artifact = line.registry.fetch("apart", 1)
    assert line.golden(0).validate_in_subprocess(artifact) == 0.0
    with pytest.raises(WorkError, match="differ from its certified answers"):
        line.golden(1).validate_in_subprocess(artifact)


def test_a_champion_is_proved_and_answers_as_certified(line: Line) -> None:
    line.register("first", 1, seed=0)
    outcome = line.promote("first", 1)
    assert (outcome.version, outcome.error) == (1, None)
    assert line.answers("first") == line.golden(0).answers
    assert line.registry.told[-1].evidence["difference"] == 0.0
    assert line.status("first", 1) == "live"
    assert line.release("first").changed is False


def test_it_is_certified_by_64_prompts_alone_and_with_32_in_flight(line: Line) -> None:
    line.register("asked", 1, seed=0)
    assert line.promote("asked", 1).error is None
    prompts = tuple(TEXT[at : at + 24] for at in range(0, 64 * 401, 401))
    mine, other = (tuple(made.greedy(prompt, TOKENS) for prompt in prompts) for made in line.models)
    golden = GoldenPrompts(prompts, mine, TOKENS, exact=True, transformers=mine)
    version = ModelVersion("asked", 1, "", "")
    live = certify_live_answers(golden, line.client, version, STREAMS, 10.0)
    assert live.as_certified == "64 of 64 prompts alone, 64 of 64 with 32 in flight"
    assert live.as_transformers == live.as_certified
    assert list(faults_of(CERTIFICATE, live, exact=True)) == []
    lying = replace(golden, answers=other[:1] + mine[1:], transformers=other[:1] + mine[1:])
    found = certify_live_answers(lying, line.client, version, STREAMS, 10.0)
    assert found.as_certified == "63 of 64 prompts alone, 63 of 64 with 32 in flight"
    assert len(list(faults_of(CERTIFICATE, found, exact=True))) == 2


@pytest.mark.chaos
def test_32_streams_end_on_the_version_they_began_on(line: Line) -> None:
    line.register("swapped", 1, seed=0)
    line.register("swapped", 2, seed=1)
    assert line.promote("swapped", 1).error is None
    client = line.client.streams
    prompts = [TEXT[at : at + 30] for at in range(0, STREAMS * 311, 311)]
    alone = [client.complete("swapped", prompt, LONG).texts[0] for prompt in prompts]
    begun = threading.Barrier(STREAMS + 1)
    versions: list[int] = []
    later: dict[int, str] = {}

    def stream(number: int) -> None:
        """Ask until the other version answers; an answer is wholly of the one or of the other."""
        first = True
        while True:
            pieces = client.generate("swapped", prompts[number], LONG)
            text = next(pieces).texts[0]
            if first:
                begun.wait()
            first = False
            text += "".join(piece.texts[0] for piece in pieces)
            if text == alone[number]:
                versions.append(1)
                continue
            versions.append(2)
            later[number] = text
            return

    with ThreadPoolExecutor(STREAMS) as crowd:
        running = [crowd.submit(stream, number) for number in range(STREAMS)]
        begun.wait()
        outcome = line.promote("swapped", 2)
        for each in running:
            each.result(timeout=120)
    assert (outcome.version, outcome.error) == (2, None)
    assert versions.count(1) >= STREAMS
    wanted = [client.complete("swapped", prompt, LONG).texts[0] for prompt in prompts]
    assert [later[number] for number in range(STREAMS)] == wanted
    assert line.answers("swapped") == line.golden(1).answers


def test_back_to_the_version_before(line: Line) -> None:
    line.register("back", 1, seed=0)
    line.register("back", 2, seed=1)
    for version, seed in ((1, 0), (2, 1), (1, 0)):
        line.promote("back", version)
        assert line.client.live_version("back") == version
        assert line.answers("back") == line.golden(seed).answers


def test_other_answers_than_those_certified_are_refused(line: Line) -> None:
    line.register("lying", 1, seed=0)
    line.register("lying", 2, seed=1)
    line.registry.golden["lying", 2] = line.golden(0)
    line.promote("lying", 1)
    outcome = line.promote("lying", 2)
    assert line.client.live_version("lying") == 1
    assert "differ from its certified answers" in str(outcome.error)
    assert line.status("lying", 2) == "refused"
    assert line.answers("lying") == line.golden(0).answers


def test_a_form_in_short_numbers_may_differ_a_little(line: Line) -> None:
    line.register("near", 1, seed=0)
    golden = line.golden(0)
    answers = (golden.answers[0][:-1], *golden.answers[1:])
    line.registry.golden["near", 1] = replace(golden, answers=answers, exact=False)
    assert line.promote("near", 1).error is None
    assert 0 < float(str(line.registry.told[-1].evidence["difference"])) < 0.1


def test_a_form_that_does_not_open_is_refused(line: Line, tmp_path: Path) -> None:
    shutil.copytree(line.models[0].folder, tmp_path / "files")
    weights = tmp_path / "files" / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    line.register("broken", 1, seed=0)
    line.promote("broken", 1)
    line.registry.register_language("broken", 2, tmp_path / "files", line.golden(0))
    outcome = line.promote("broken", 2)
    assert outcome.error is not None
    assert line.client.live_version("broken") == 1
    assert line.status("broken", 2) == "refused"
    assert line.answers("broken") == line.golden(0).answers


@pytest.mark.slow
def test_a_draft_changes_no_answer(line: Line) -> None:
    golden, small = line.golden(0), line.models[1].folder
    line.register("drafted", 1, seed=0)
    line.registry.register_language("drafted", 2, line.models[0].folder, golden, draft=small)
    for version in (1, 2, 1):
        assert line.promote("drafted", version).error is None
        assert line.client.live_version("drafted") == version
        assert line.answers("drafted") == golden.answers
    told = next(
        each
        for each in line.registry.told
        if (each.model, each.version, each.kind) == ("drafted", 2, "live")
    )
    assert str(told.evidence["draft"]).startswith("small/1, sha256 ")
    assert told.evidence["difference"] == 0.0
    staged = line.installation.model_repository / "drafted" / "2" / "draft"
    assert {file.name for file in staged.iterdir()} == {file.name for file in small.iterdir()}


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("tokenizer.json", "its tokenizer differs"),
        ("openvino_model.bin", "RuntimeError"),
    ],
)
def test_a_draft_that_does_not_work_is_refused(
    line: Line, tmp_path: Path, file: str, told: str
) -> None:
    name = f"misled-by-{file.partition('.')[0]}"
    shutil.copytree(line.models[1].folder, tmp_path / "small")
    changed = tmp_path / "small" / file
    changed.write_bytes(changed.read_bytes()[:1000] + b" ")
    folder, golden = line.models[0].folder, line.golden(0)
    line.registry.register_language(name, 1, folder, golden, draft=tmp_path / "small")
    outcome = line.promote(name, 1)
    assert told in f"{outcome.error}"
    assert line.status(name, 1) == "refused"
    assert line.client.live_version(name) is None


def test_streams_are_not_shared_out(line: Line) -> None:
    line.register("canary", 1, seed=0)
    line.register("canary", 2, seed=1)
    line.promote("canary", 1)
    line.registry.rollouts["canary", 2] = RolloutSpec(kind="canary", hold_s=5)
    outcome = line.promote("canary", 2)
    assert line.client.live_version("canary") == 1
    assert "they answer in streams" in str(outcome.error)


@pytest.mark.chaos
def test_a_killed_backend_is_loaded_by_the_next_release(line: Line) -> None:
    line.register("killed", 1, seed=0)
    line.promote("killed", 1)
    assert kill_backends(f"{line.installation.model_repository}/killed/") == 1
    assert line.release("killed").error is None
    assert line.answers("killed") == line.golden(0).answers


def test_what_is_served_can_be_changed_without_new_weights(line: Line) -> None:
    line.register("sizes", 1, seed=0)
    line.register("sizes", 2, seed=0, generation={"max_num_seqs": 2, "stream_interval": 1})
    line.promote("sizes", 1)
    assert line.promote("sizes", 2).error is None
    assert line.client.live_version("sizes") == 2
    config = (line.installation.model_repository / "sizes" / "config.pbtxt").read_text()
    assert 'key: "max_num_seqs"' in config
    assert line.answers("sizes") == line.golden(0).answers
