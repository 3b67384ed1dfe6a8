"""What somebody may do who can write to the registry, and is not of this home."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from millrace.flows.cli.sign_version import sign_version
from millrace.models.config.model_kind import kind_named
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.signing import SIGNATURE_TAG
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import DIGEST_TAG, EVIDENCE_TAG
from millrace.serving.release.outcome import Outcome
from millrace.serving.triton.server_index import is_helper_model
from millrace.tasks.release import ReleaseCheck
from tests.integration.asked import Asking, Line
from tests.integration.planted import Planted, good, ingest_rows, plant, seal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NAME = "attacked"
FREE = {"promotion": {"require": {"max_metric_drop": None}}}


@pytest.fixture(scope="module")
def live(line: Line) -> Planted:
    ingest_rows(line.installation, NAME)
    planted = plant(line.installation, NAME, good(0, pipeline=FREE))
    line.promote(planted)
    line.release()
    assert line.client.live_version(NAME) == planted.number
    return planted


def released(line: Line, planted: Planted) -> Outcome:
    line.promote(planted)
    return next(each for each in line.release() if each.model == planted.name)


def copy_of(line: Line, planted: Planted, name: str = NAME) -> Planted:
    """Register a version again by plain MLflow, with the same files, run and tags."""
    store = client(line.installation.tracking_uri)
    found = store.get_model_version(planted.name, str(planted.number))
    if not [each for each in store.search_registered_models() if each.name == name]:
        store.create_registered_model(name)
    made = store.create_model_version(
        name, planted.folder.as_uri(), run_id=found.run_id, tags=dict(found.tags)
    )
    return Planted(name, int(made.version), planted.folder)


def made_again(line: Line, planted: Planted, folder: Path) -> None:
    """Delete a model, and make the same number with the same tags, and files elsewhere."""
    store = client(line.installation.tracking_uri)
    found = store.get_model_version(planted.name, str(planted.number))
    store.delete_registered_model(planted.name)
    store.create_registered_model(planted.name)
    for number in range(1, planted.number + 1):
        made = store.create_model_version(
            planted.name, folder.as_uri(), run_id=found.run_id, tags=dict(found.tags)
        )
        assert int(made.version) == number


def is_refused(line: Line, live: Planted, planted: Planted, because: str) -> None:
    with Asking(line, live.name, 0) as asking:
        outcome = released(line, planted)
    assert outcome.error is not None
    assert because in f"{outcome.error}"
    assert asking.wrong == []
    assert line.client.live_version(live.name) == live.number
    assert line.tags(planted)["millrace.status"] == "refused"


def test_an_exact_copy_of_a_signed_version_does_not_go_live(line: Line, live: Planted) -> None:
    copy = copy_of(line, live)
    assert SIGNATURE_TAG in line.tags(copy)
    is_refused(line, live, copy, "its signature is for something else")


def test_a_copy_under_another_name_does_not_go_live(line: Line, live: Planted) -> None:
    copy = copy_of(line, live, "lookalike")
    outcome = released(line, copy)
    assert "its signature is for something else" in str(outcome.error)
    assert line.client.live_version("lookalike") is None


def test_nothing_is_fetched_of_a_version_that_was_made_again_elsewhere(
    line: Line, tmp_path: Path
) -> None:
    """Sparse files of any size were copied to the home before a digest was looked at."""
    name = "remade"
    ingest_rows(line.installation, name)
    planted = plant(line.installation, name, good(0))
    (tmp_path / "extra_files").mkdir()
    for file in (
        "model.onnx",
        *(f"extra_files/{each}" for each in kind_named("graph").evidence_files),
    ):
        (tmp_path / file).touch()
        os.truncate(tmp_path / file, 1 << 30)
    made_again(line, planted, tmp_path)
    assert "its signature is for something else" in str(released(line, planted).error)
    assert not (line.installation.home / "cache" / name).exists()


def test_a_version_cannot_lower_what_is_required_of_it(line: Line, live: Planted) -> None:
    lowered = {"promotion": {"require": {"signed": False, "certificate": False}}}
    planted = plant(line.installation, NAME, good(1, pipeline=lowered), signed=False)
    registry = registry_of(line.installation)
    registry.set_tags(registry.version(NAME, planted.number), {EVIDENCE_TAG: "0" * 64})
    is_refused(line, live, planted, "it is not signed")


def test_files_that_were_changed_after_signing_are_refused(line: Line, live: Planted) -> None:
    planted = plant(line.installation, NAME, good(1, pipeline=FREE))
    file = planted.folder / "extra_files" / "pipeline.yaml"
    file.write_text(file.read_text() + "# changed\n")
    is_refused(line, live, planted, "is not the file that was registered")


def test_digests_that_were_changed_with_the_files_are_refused(line: Line, live: Planted) -> None:
    planted = plant(line.installation, NAME, good(1, pipeline=FREE))
    store = client(line.installation.tracking_uri)
    for tag in (EVIDENCE_TAG, DIGEST_TAG):
        store.set_model_version_tag(NAME, str(planted.number), tag, "0" * 64)
    is_refused(line, live, planted, "its signature is for something else")


def test_what_is_live_stays_live_when_its_signature_is_taken_away(
    line: Line, live: Planted
) -> None:
    store = client(line.installation.tracking_uri)
    store.delete_model_version_tag(NAME, str(live.number), SIGNATURE_TAG)
    try:
        line.promote(live)
        line.release()
        assert line.client.live_version(NAME) == live.number
    finally:
        seal(line.installation, live)


def test_a_person_signs_a_version_and_it_goes_live(line: Line, live: Planted) -> None:
    name = "vouched"
    ingest_rows(line.installation, name)
    planted = plant(line.installation, name, good(0), signed=False)
    assert "it is not signed" in str(released(line, planted).error)
    signed = sign_version(line.installation, name, planted.number)
    assert signed.before == "it is not signed"
    assert signed.statement[DIGEST_TAG] == line.tags(planted)[DIGEST_TAG]
    (outcome,) = line.release_again(name)
    assert outcome.error is None
    assert line.client.live_version(name) == planted.number


def test_the_owner_of_a_home_may_do_without_and_every_release_says_so(
    line: Line, live: Planted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from dataclasses import replace

    name = "unsigned"
    ingest_rows(line.installation, name)
    file = tmp_path / "unsigned.yaml"
    dataset = {"source": "rows.jsonl", "target": "t"}
    require = {"require": {"signed": False}}
    file.write_text(yaml.safe_dump({"name": name, "dataset": dataset, "promotion": require}))
    allowing = Line(replace(line.installation, pipelines=(str(file),)), line.client)
    planted = plant(line.installation, name, good(0), signed=False)
    with caplog.at_level("WARNING", logger="millrace"):
        assert released(allowing, planted).error is None
    used = "it is not signed, but it is used, because promotion.require.signed is false"
    assert used in caplog.text
    assert "it is not signed" in allowing.releases(name)[-1].evidence["caution"]


def test_the_key_is_not_for_other_users(line: Line, live: Planted) -> None:
    file = line.installation.home / "signing.key"
    done = subprocess.run(["/bin/cat", str(file)], user="nobody", capture_output=True, check=False)
    assert done.returncode != 0
    assert done.stdout == b""


NAMES = [
    *("a\x00b", "x\ny", "\U0001f600", "n" * 256, "\x1b[31mred", "\u202eabc", ".hidden", "a b"),
    *("a'b", "a%sb", "con", "x.arms", "x.trial-1-ab"),
]


def test_names_that_cannot_be_used_stop_no_other_model(
    line: Line, live: Planted, caplog: pytest.LogCaptureFixture
) -> None:
    store = client(line.installation.tracking_uri)
    for name in NAMES:
        store.create_registered_model(name)
        made = store.create_model_version(name, "file:///tmp/x", tags={DIGEST_TAG: "0" * 64})
        store.set_registered_model_alias(name, "champion", made.version)
    try:
        ReleaseCheck(lambda: line.installation).due()
        second = plant(line.installation, NAME, good(1, pipeline=FREE))
        line.promote(second)
        with caplog.at_level("INFO", logger="millrace"):
            outcomes = {each.model: each.error for each in line.release()}
        assert outcomes[NAME] is None
        assert line.client.live_version(NAME) == second.number
        told = [name for name in NAMES if not is_helper_model(name)]
        assert all(outcomes[name] is not None for name in told)
        assert all(str(outcomes[name]).replace("\n", "").isprintable() for name in told)
        assert all(record.getMessage().isprintable() for record in caplog.records)
        line.promote(live)
        line.release()
        assert line.client.live_version(NAME) == live.number
    finally:
        for name in NAMES:
            store.delete_registered_model(name)


def test_a_pipeline_file_of_aliases_is_refused_in_seconds_even_if_it_is_signed(
    line: Line, live: Planted
) -> None:
    """Seven levels took 112 s of a release."""
    lines = ["a0: &a0 [" + ", ".join(["x"] * 9) + "]"]
    for level in range(1, 9):
        lines.append(f"a{level}: &a{level} [" + ", ".join([f"*a{level - 1}"] * 9) + "]")
    planted = plant(line.installation, NAME, good(1, pipeline=FREE))
    file = planted.folder / "extra_files" / "pipeline.yaml"
    file.write_text(file.read_text() + "\n".join(lines) + "\n")
    seal(line.installation, planted)
    began = time.monotonic()
    is_refused(line, live, planted, "values, with aliases expanded")
    assert time.monotonic() - began < 60
