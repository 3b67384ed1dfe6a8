"""A serving profile says what it proves, and is not taken for a proof of anything else."""

import json
from typing import Any

import pytest

from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.record import (
    Client,
    Configuration,
    Proof,
    ServingProfile,
    find_fault,
    parse_profile,
)

GOAL = SloSpec(rate=200, p99_ms=10, rows={1: 9, 16: 1})
STREAMED = SloSpec(rate=2, ttft_p99_ms=200, tpot_p99_ms=20, prompt_tokens={64: 1, 128: 1})


def proof(bound: str = "p99_ms", bound_ms: float = 10, **keys: Any) -> Proof:
    counted = {"requests": 1000, "over": 1, "allowed": 2, "correlation": 1.5, "p99_ms": 3.25}
    return Proof(bound=bound, bound_ms=bound_ms, **{**counted, **keys})


def profile(goal: SloSpec = GOAL, *proofs: Proof, **keys: Any) -> ServingProfile:
    values = {
        "model": "m",
        "version": 3,
        "digest": "d" * 64,
        "variant": "onnx-fp32",
        "goal": goal,
        "configuration": Configuration(settings={"max_batch_size": 8, "instance_count": 2}),
        "rate": goal.rate,
        "capacity": 900.0,
        "confidence": 0.99,
        "proofs": proofs or (proof(),),
        "client": Client(core_share=0.2, lateness_p99_ms=0.1),
        "machine": "a machine",
        "machine_kind": "cpu x",
        "cores": 4,
        "engine": "triton 1",
        "created": "2026-01-01T00:00:00+00:00",
    }
    return ServingProfile(**{**values, **keys})


def streamed(*proofs: Proof, goal: SloSpec = STREAMED) -> ServingProfile:
    both = (proof("ttft_p99_ms", 200), proof("tpot_p99_ms", 20))
    return profile(goal, *(proofs or both))


def fault(found: ServingProfile | None, goal: SloSpec | None = GOAL, **here: Any) -> str | None:
    place = {"digest": "d" * 64, "machine_kind": "cpu x", "cores": 4, "engine": "triton 1"}
    return find_fault(found, goal=goal, **{**place, **here})


@pytest.mark.parametrize("written", [profile(), streamed(), profile(GOAL, proof(p99_ms=None))])
def test_a_profile_is_read_as_it_was_written(written: ServingProfile) -> None:
    read = parse_profile(written.to_json())
    assert read == written
    assert read.sha256 == written.sha256


def test_another_profile_has_another_digest() -> None:
    assert profile(capacity=901.0).sha256 != profile().sha256


def changed(part: str, **values: object) -> str:
    """Return the text of a profile in which a part, such as `proofs.0`, has other values."""
    whole = json.loads(profile().to_json())
    place = whole
    for name in filter(None, part.split(".")):
        place = place[int(name) if name.isdigit() else name]
    place.update(values)
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ""),
        ("garbage", ""),
        ("[]", ""),
        ("{}", "model"),
        (profile().to_json()[:-20], ""),
        (changed("", extra=1), "extra"),
        (changed("proofs.0", extra=1), "proofs.0.extra"),
        (changed("goal", extra=1), "goal.extra"),
        (changed("", rate=float("nan")), "rate"),
        (changed("", capacity=float("inf")), "capacity"),
        (changed("proofs.0", bound_ms=float("nan")), "proofs.0.bound_ms"),
        (changed("goal", p99_ms=float("nan")), "goal.p99_ms"),
        (changed("client", core_share=float("nan")), "client.core_share"),
        (changed("", rate=0), "rate"),
        (changed("", version=0), "version"),
        (changed("", confidence=1), "confidence"),
        (changed("", proofs=[]), "proofs"),
        (changed("goal", p99_ms=None), "goal"),
        (changed("configuration", settings={"max_batch_size": "many"}), "configuration.settings"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(ValueError, match=f"^serving_profile.json: {place}"):
        parse_profile(text)


def test_a_configuration_replaces_its_own_settings_alone() -> None:
    before = ServingSpec(max_batch_size=64, keep_versions=5, slo=GOAL)
    chosen = Configuration(settings={"max_batch_size": 8, "intra_op_thread_count": 3})
    assert chosen.apply(before) == ServingSpec(
        max_batch_size=8, intra_op_thread_count=3, keep_versions=5, slo=GOAL
    )
    assert before.max_batch_size == 64


def test_a_configuration_may_have_settings_of_the_generation() -> None:
    before = ServingSpec.model_validate({"generation": {"cache_size_gib": 2, "max_num_seqs": 32}})
    after = Configuration(settings={"generation.max_num_seqs": 4}).apply(before)
    assert (after.generation.max_num_seqs, after.generation.cache_size_gib) == (4, 2)
    assert before.generation.max_num_seqs == 32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 8),
        ("max_num_seqs", 8),
        ("generation.max_batch_size", 8),
        ("generations.max_num_seqs", 8),
        ("generation.draft.max_num_seqs", 8),
        ("slo.rate", 8),
        ("quorum.all", 8),
        ("max_batch_size", 0),
        ("generation.max_num_seqs", 0),
    ],
)
def test_a_setting_that_does_not_exist_or_is_not_allowed_is_refused(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=key):
        Configuration(settings={key: value}).apply(ServingSpec())


@pytest.mark.parametrize(
    ("found", "is_proved"),
    [
        (profile(), True),
        (profile(GOAL, proof(bound_ms=8)), True),
        (profile(GOAL, proof(over=2, allowed=2)), True),
        (profile(GOAL, proof(over=3, allowed=2)), False),
        (profile(GOAL, proof(over=0, allowed=-1)), False),
        (profile(GOAL, proof(bound_ms=10.5)), False),
        (profile(GOAL, proof("ttft_p99_ms")), False),
        (streamed(), True),
        (streamed(proof("ttft_p99_ms", 200)), False),
        (streamed(proof("ttft_p99_ms", 200), proof("tpot_p99_ms", 20, over=3)), False),
        (streamed(proof("ttft_p99_ms", 200, over=3), proof("tpot_p99_ms", 20)), False),
        (
            streamed(proof("ttft_p99_ms", 200), goal=SloSpec(rate=2, ttft_p99_ms=200)),
            True,
        ),
    ],
)
def test_a_goal_is_proved_if_every_bound_of_it_is(found: ServingProfile, is_proved: bool) -> None:
    assert found.is_proved is is_proved


@pytest.mark.parametrize(
    ("found", "summary"),
    [
        (profile(), "met at 200 requests/s: p99 3.25 ms of 10 ms"),
        (
            profile(GOAL, proof(over=3, p99_ms=None)),
            "not met at 200 requests/s: p99 no answer of 10 ms",
        ),
        (
            profile(GOAL, proof(over=8, requests=4060, allowed=5, p99_ms=7.96), rate=5340),
            "not proved at 5,340 requests/s: p99 7.96 ms of 10 ms, but 8 of 4,060 requests took "
            "longer, and for a proof at most 5 may",
        ),
        (
            profile(GOAL, proof(over=0, allowed=-1)),
            "not proved at 200 requests/s: p99 3.25 ms of 10 ms, but slow ones came together: "
            "1,000 requests are too few",
        ),
        (
            streamed(),
            "met at 2 requests/s: ttft p99 3.25 ms of 200 ms; tpot p99 3.25 ms of 20 ms",
        ),
    ],
)
def test_a_profile_tells_what_was_measured(found: ServingProfile, summary: str) -> None:
    assert found.summary() == summary


def other(goal: SloSpec = GOAL, **keys: Any) -> SloSpec:
    return SloSpec.model_validate({**goal.model_dump(), **keys})


@pytest.mark.parametrize(
    ("found", "goal", "here"),
    [
        (profile(), GOAL, {}),
        (profile(), other(rate=100), {}),
        (profile(), other(p99_ms=20), {}),
        (profile(), other(rows={1: 18, 16: 2}), {}),
        (profile(), other(rows={16: 0.1, 1: 0.9}), {}),
        (profile(), other(prompt_tokens=7, answer_tokens=7), {}),
        (profile(rate=400), other(rate=300), {}),
        (streamed(), STREAMED, {}),
        (streamed(), other(STREAMED, tpot_p99_ms=None), {}),
        (streamed(), other(STREAMED, rows=7), {}),
    ],
)
def test_a_profile_proves_its_goal_and_easier_ones(
    found: ServingProfile, goal: SloSpec, here: dict[str, Any]
) -> None:
    assert fault(found, goal, **here) is None


@pytest.mark.parametrize(
    ("found", "goal", "here", "words"),
    [
        (profile(), None, {}, "has no serving.slo"),
        (None, None, {}, "has no serving.slo"),
        (None, GOAL, {}, "it has no serving profile"),
        (profile(), GOAL, {"digest": "e" * 64}, "with other files"),
        (
            profile(),
            GOAL,
            {"machine_kind": "cpu y"},
            "another kind of machine: cpu x, 4 cores; this one is cpu y, 4 cores",
        ),
        (profile(), GOAL, {"cores": 3}, "cpu x, 4 cores; this one is cpu x, 3 cores"),
        (profile(), GOAL, {"engine": "triton 2"}, "with triton 1, and this machine has triton 2"),
        (profile(), other(rate=201), {}, "another goal: 200 requests/s, of 201"),
        (profile(rate=100), GOAL, {}, "another goal: 100 requests/s, of 200"),
        (profile(), other(p99_ms=9.5), {}, "another goal: p99_ms 10, not 9.5"),
        (
            profile(),
            SloSpec(rate=2, ttft_p99_ms=200, rows=GOAL.rows),
            {},
            "another goal: no ttft_p99_ms",
        ),
        (
            streamed(proof("ttft_p99_ms", 200), goal=other(STREAMED, tpot_p99_ms=None)),
            STREAMED,
            {},
            "another goal: no tpot_p99_ms",
        ),
        (streamed(), other(STREAMED, tpot_p99_ms=10), {}, "another goal: tpot_p99_ms 20, not 10"),
        (profile(), other(rows=1), {}, "another goal: other rows"),
        (profile(), other(rows={1: 8, 16: 2}), {}, "another goal: other rows"),
        (streamed(), other(STREAMED, prompt_tokens=64), {}, "another goal: other prompt_tokens"),
        (streamed(), other(STREAMED, answer_tokens=65), {}, "another goal: other answer_tokens"),
        (
            profile(GOAL, proof(over=3, p99_ms=12)),
            GOAL,
            {},
            "says that the goal is not met at 200 requests/s: p99 12 ms of 10 ms",
        ),
        (profile(GOAL, proof(bound_ms=11)), GOAL, {}, "says that the goal is not proved"),
    ],
)
def test_a_profile_that_does_not_prove_the_goal_here_has_a_fault(
    found: ServingProfile | None, goal: SloSpec | None, here: dict[str, Any], words: str
) -> None:
    told = fault(found, goal, **here)
    assert told is not None
    assert words in told
