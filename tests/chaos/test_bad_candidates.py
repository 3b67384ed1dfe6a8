"""Everything that may be wrong with a version: refused with the reason, and nobody notices.

A real MLflow registry, a real Triton, and a client that asks the champion all the while.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from millrace.models.common.digest import digest_of
from millrace.models.common.installation import Installation
from millrace.models.inference.features import FEATURES
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import DIGEST_TAG
from millrace.serving.release import trial
from millrace.serving.release.outcome import raise_first_error
from tests.integration.asked import Asking, Line, nothing_of_a_trial_is_left
from tests.integration.planted import (
    GOLDEN,
    SEED,
    Planted,
    Version,
    busy,
    classifier,
    good,
    ingest_rows,
    made_by,
    plant,
    seal,
    softmax,
    weights_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NAME = "judged"


@pytest.fixture(scope="module")
def champion(line: Line) -> Planted:
    ingest_rows(line.installation, NAME)
    planted = plant(line.installation, NAME, good())
    line.promote(planted)
    raise_first_error(line.release())
    assert line.client.live_version(NAME) == planted.number
    return planted


def scaled(by: float) -> Version:
    """A version whose weights are not those that were certified."""
    return replace(good(SEED), model=classifier(weights_of(SEED) * np.float32(by)))


def with_weights(value: float) -> Version:
    weights = weights_of(SEED)
    weights[0, 0] = value
    return replace(good(SEED), model=classifier(weights))


def batch_dependent() -> Version:
    mean = helper.make_node("ReduceMean", [FEATURES], ["mean"], axes=[0], keepdims=1)
    less = helper.make_node("Sub", [FEATURES, "mean"], ["seen"])
    version = made_by(mean, less)
    return replace(version, answers=softmax((GOLDEN - GOLDEN.mean(0)) @ weights_of(SEED)))


def overflowing() -> Version:
    """The least whole number divided by -1 ends the process by a signal, on x86."""
    return made_by(
        helper.make_node("Cast", [FEATURES], ["whole"], to=7),
        helper.make_node("Mul", ["whole", "zero"], ["none"]),
        helper.make_node("Add", ["none", "least"], ["dividend"]),
        helper.make_node("Add", ["none", "minus_one"], ["divisor"]),
        helper.make_node("Div", ["dividend", "divisor"], ["divided"]),
        helper.make_node("Cast", ["divided"], ["seen"], to=1),
        zero=np.zeros(1, np.int64),
        least=np.full(1, np.iinfo(np.int64).min),
        minus_one=np.full(1, -1),
    )


def greedy() -> Version:
    """A version that wants more memory than a trial may take."""
    return made_by(
        helper.make_node("ReduceSum", [FEATURES], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["whole"], to=7),
        helper.make_node("Mul", ["whole", "zero"], ["none"]),
        helper.make_node("Add", ["none", "many"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["all"]),
        helper.make_node("ReduceSum", ["all"], ["nothing"], keepdims=0),
        helper.make_node("Add", [FEATURES, "nothing"], ["seen"]),
        zero=np.zeros(1, np.int64),
        many=np.full(1, 20 << 30, np.int64),
    )


def other_width() -> Version:
    weights = np.random.default_rng(SEED).normal(size=(6, 3)).astype(np.float32)
    return replace(good(SEED), model=classifier(weights))


def other_answer() -> Version:
    weights = np.random.default_rng(SEED).normal(size=(4, 5)).astype(np.float32)
    return replace(good(SEED), model=classifier(weights))


def doubles() -> Version:
    model = classifier(weights_of(SEED).astype(np.float64), elem_type=11)
    return replace(good(SEED), model=model)


def requiring(**require: Any) -> dict[str, Any]:
    return {"promotion": {"require": require}}


Spoil = Callable[[Planted, Installation], None]


def nothing(planted: Planted, installation: Installation) -> None:
    """Leave the files as they were planted."""


def overwritten(planted: Planted, installation: Installation) -> None:
    (planted.folder / "model.onnx").write_bytes(b"not a model")


def truncated(planted: Planted, installation: Installation) -> None:
    file = planted.folder / "model.onnx"
    file.write_bytes(file.read_bytes()[:100])


def other_digest(planted: Planted, installation: Installation) -> None:
    store = client(installation.tracking_uri)
    store.set_model_version_tag(planted.name, str(planted.number), DIGEST_TAG, "0" * 64)


def registered_as_corrupt(planted: Planted, installation: Installation) -> None:
    overwritten(planted, installation)
    digest = digest_of(planted.folder / "model.onnx")
    store = client(installation.tracking_uri)
    store.set_model_version_tag(planted.name, str(planted.number), DIGEST_TAG, digest)


def without(name: str) -> Spoil:
    return lambda planted, _: (planted.folder / name).unlink()


def linked(planted: Planted, installation: Installation) -> None:
    file = planted.folder / "extra_files" / "encoding.json"
    file.unlink()
    file.symlink_to("/etc/passwd")


def unreadable(name: str) -> Spoil:
    def spoil(planted: Planted, installation: Installation) -> None:
        (planted.folder / "extra_files" / name).write_text("{")

    return spoil


def external() -> Version:
    """A version whose weights are said to be in a file elsewhere on the machine."""
    import onnx
    from onnx import TensorProto

    loaded = onnx.load_from_string(classifier(weights_of(SEED)))
    tensor = loaded.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../../../../etc/passwd"), ("length", "48")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return replace(good(SEED), model=loaded.SerializeToString())


BAD: dict[str, tuple[Callable[[], Version], Spoil, str]] = {
    "corrupt": (lambda: good(SEED), overwritten, "is not the file that was registered"),
    "truncated": (lambda: good(SEED), truncated, "is not the file that was registered"),
    "digest changed": (lambda: good(SEED), other_digest, "is not the file that was registered"),
    "registered corrupt": (lambda: good(SEED), registered_as_corrupt, "model.onnx"),
    "no model": (lambda: good(SEED), without("model.onnx"), "has no model.onnx"),
    "no certificate": (
        lambda: good(SEED),
        without("extra_files/certificate.json"),
        "has no certificate.json",
    ),
    "unreadable certificate": (
        lambda: good(SEED),
        unreadable("certificate.json"),
        "the evidence files of judged",
    ),
    "unreadable pipeline": (
        lambda: good(SEED),
        unreadable("pipeline.yaml"),
        "the evidence files of judged",
    ),
    "link to a file outside": (lambda: good(SEED), linked, "cannot be fetched"),
    "weights outside": (external, nothing, "weights"),
    "gates not held": (lambda: good(SEED, passed=False), nothing, "did not pass its gates"),
    "metric too low": (
        lambda: good(SEED, metric=0.94),
        nothing,
        "its accuracy of 0.9400 is 6.0% below 1.0000 of version 1; allowed is 5.0%",
    ),
    "not approved": (
        lambda: good(SEED, pipeline=requiring(approval=True)),
        nothing,
        "nobody approved it",
    ),
    "approved by its author": (
        lambda: good(SEED, pipeline=requiring(approval=True), tags={"millrace.approved_by": "ann"}),
        nothing,
        "ann ran its training",
    ),
    "wrong input name": (
        lambda: replace(good(SEED), model=classifier(weights_of(SEED), features="rows")),
        nothing,
        "features",
    ),
    "wrong output name": (
        lambda: replace(good(SEED), model=classifier(weights_of(SEED), probabilities="p")),
        nothing,
        "has no output named",
    ),
    "wrong input shape": (other_width, nothing, "features"),
    "wrong output shape": (other_answer, nothing, "another shape"),
    "wrong dtype": (doubles, nothing, "expected: (tensor(double))"),
    "NaN weights": (lambda: with_weights(np.nan), nothing, "not a number"),
    "infinite weights": (lambda: with_weights(np.inf), nothing, "not a number"),
    "other weights": (lambda: scaled(1.5), nothing, "differ from its certified answers"),
    "depends on its batch": (batch_dependent, nothing, "differ from its certified answers"),
    "unknown operator": (
        lambda: made_by(helper.make_node("NoSuchOperator", [FEATURES], ["seen"])),
        nothing,
        "NoSuchOperator",
    ),
    "too slow": (
        lambda: replace(busy(700, 3, depends=True), pipeline={"serving": {"latency_slo_ms": 1.0}}),
        nothing,
        "too slow",
    ),
    "hangs in load": (
        lambda: busy(4000, 400, depends=False),
        nothing,
        "loading and answering did not end",
    ),
    "hangs in execution": (
        lambda: busy(4000, 400, depends=True),
        nothing,
        "loading and answering did not end",
    ),
    "crashes its process": (overflowing, nothing, "crashed: SIGFPE"),
    "takes too much memory": (greedy, nothing, "memory"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_version_is_refused_with_its_reason(
    line: Line, champion: Planted, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "BASE_LIMITS", replace(trial.BASE_LIMITS, seconds=12.0))
    make, spoil, reason = BAD[kind]
    planted = plant(line.installation, NAME, make(), signed=False)
    spoil(planted, line.installation)
    seal(line.installation, planted)
    line.promote(planted)
    with Asking(line, NAME, 0) as asking:
        line.release()
    assert asking.asked > 0
    assert asking.wrong == []
    tags = line.tags(planted)
    assert tags["millrace.status"] == "refused"
    assert reason in tags["millrace.reason"]
    assert line.tags(champion)["millrace.status"] == "live"
    assert f"version {planted.number} has the alias" in line.tags(champion)["millrace.reason"]
    assert line.client.live_version(NAME) == champion.number
    assert nothing_of_a_trial_is_left(line)


def test_a_good_version_goes_live_after_all_of_them(line: Line, champion: Planted) -> None:
    planted = plant(line.installation, NAME, good(SEED))
    line.promote(planted)
    raise_first_error(line.release())
    assert line.client.live_version(NAME) == planted.number
    assert line.tags(planted)["millrace.status"] == "live"
    assert line.tags(champion)["millrace.status"] == "superseded"
