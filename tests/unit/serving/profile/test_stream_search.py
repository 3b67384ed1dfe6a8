"""Which number of answers under way a profile puts first, and how steps are measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from millrace.models.common.errors import WorkError
from millrace.models.config.language_spec import GenerationSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile import stream_measure
from millrace.serving.profile.prompt_texts import PromptTexts
from millrace.serving.profile.record import Client, Configuration
from millrace.serving.profile.step_times import PLACES, Correction, StepTimes, StreamLevel
from millrace.serving.profile.stream_measure import measure_steps
from millrace.serving.profile.stream_rates import with_rates
from millrace.serving.profile.stream_search import (
    SEQUENCES,
    StreamConfiguration,
    StreamDemand,
    predict_streams,
    rank_streams,
)
from millrace.serving.profile.stream_twin import simulate_streams
from millrace.serving.profile.workload import Sent
from millrace.serving.triton.open_streams import StreamedLoad

STEPS = StepTimes((1, 64), (0.010, 0.040), prompt_token=0.0002)
"""64 answers at a time take only 4 times as long as one."""
SERVING = ServingSpec()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pauses between requests."""
    monkeypatch.setattr(stream_measure, "IDLE", 0.0)


def goal(**bounds: float) -> SloSpec:
    return SloSpec(rate=1, prompt_tokens=32, answer_tokens=16, **bounds)  # type: ignore[arg-type]


def best(found: SloSpec, serving: ServingSpec = SERVING) -> int:
    return rank_streams(STEPS, found, serving)[0].configuration.settings["generation.max_num_seqs"]


def test_a_tight_bound_on_each_token_wants_few_answers_at_a_time() -> None:
    few = best(goal(tpot_p99_ms=16, ttft_p99_ms=5000))
    assert 1 < few < best(goal(tpot_p99_ms=500, ttft_p99_ms=5000))


def test_every_number_is_considered_and_the_pipeline_files_too() -> None:
    serving = ServingSpec(generation=GenerationSpec(max_num_seqs=24))
    ranked = rank_streams(STEPS, goal(ttft_p99_ms=300), serving)
    numbers = {each.configuration.settings["generation.max_num_seqs"] for each in ranked}
    assert numbers == {*SEQUENCES, 24}
    assert [each.predicted for each in ranked] == sorted(
        (each.predicted for each in ranked), reverse=True
    )


def test_more_load_is_slower_and_too_much_is_overload() -> None:
    demand = StreamDemand.of(goal(ttft_p99_ms=300))
    slow, fast, over = (
        predict_streams(StreamConfiguration(8), STEPS, demand, SERVING, rate)
        for rate in (1.0, 20.0, 500.0)
    )
    assert slow.ms["ttft_p99_ms"] < fast.ms["ttft_p99_ms"] < over.ms["ttft_p99_ms"]
    assert slow.ms["tpot_p99_ms"] < fast.ms["tpot_p99_ms"]
    assert (slow.is_overload, over.is_overload) == (False, True)
    assert not over.is_within({"ttft_p99_ms": 1e9})


def test_a_profile_sets_the_key_of_generation() -> None:
    settings = Configuration(settings=StreamConfiguration(7).settings)
    assert settings.apply(SERVING).generation.max_num_seqs == 7


def test_refused_requests_have_no_time() -> None:
    serving = ServingSpec(generation=GenerationSpec(max_queue_size=1))
    demand = StreamDemand.of(goal(ttft_p99_ms=300))
    found = predict_streams(StreamConfiguration(1), STEPS, demand, serving, 100.0)
    assert np.isinf(found.ms["ttft_p99_ms"])
    assert np.isinf(found.ms["tpot_p99_ms"])


@dataclass
class Engine:
    """Answers as steps of known length would.

    Attributes:
        most: answers at a time, then it refuses.
        request: seconds that each request adds.
        slower: how many times as long it takes for independent clients.
        late: seconds by which the slowest of them get their first token later.
        pause: seconds for which the machine stands still once in each load of theirs.
        goal: what they send.
        sent: how many prompts were sent together.
    """

    most: int = 1000
    request: float = 0.0
    slower: float = 1.0
    late: float = 0.0
    pause: float = 0.0
    goal: SloSpec = field(default_factory=lambda: goal(ttft_p99_ms=300))
    sent: list[int] = field(default_factory=list)

    def send_at_once(self, prompts: Sequence[int], answers: Sequence[int]) -> StreamedLoad:
        many, tokens = len(prompts), int(sum(prompts))
        self.sent.append(many)
        errors = {} if many <= self.most else {"full": 1}
        ttft = 0.003 + STEPS.step(1, tokens) + self.request * many
        first = np.full(many, ttft if not errors else np.inf)
        last = first + (np.array(answers) - 1) * STEPS.step(many, 0)
        zeros = np.zeros(many)
        return StreamedLoad(
            *(zeros, zeros, first, last, np.array(prompts), np.array(answers), errors, 0.0)
        )

    def send(self, rate: float, requests: int, seed: int) -> Sent:
        arrivals = StreamDemand.of(self.goal, requests, seed).at(rate)
        found = simulate_streams(
            *(arrivals, STEPS.times(self.slower), np.random.default_rng(1)), max_num_seqs=64
        )
        places = np.argsort(np.argsort(found.ttft)) / max(requests - 1, 1)
        ttft = found.ttft + self.late * places + self.pause * (np.arange(requests) == 5)
        # an answer of one token counts as 0, as of a real load
        values = {"ttft_p99_ms": ttft, "tpot_p99_ms": np.nan_to_num(found.tpot)}
        return Sent(values, Client(core_share=0, lateness_p99_ms=0), {})


def test_steps_are_measured() -> None:
    found = measure_steps(Engine(), goal(ttft_p99_ms=300))
    assert found.sequences == SEQUENCES
    assert found.seconds == pytest.approx([STEPS.step(many, 0) for many in SEQUENCES])
    assert found.prompt_token == pytest.approx(STEPS.prompt_token)
    assert found.overhead == pytest.approx(np.full(24, 0.003))
    assert found.noise == pytest.approx(np.ones(len(found.noise)))
    assert StepTimes.from_json(found.to_json()).step(3, 5) == pytest.approx(found.step(3, 5))
    assert slower(found) == pytest.approx(np.ones(3), abs=0.01)


def slower(found: StepTimes) -> list[float]:
    return [each.tpot.slower for each in found.levels]


def test_independent_clients_are_answered_more_slowly() -> None:
    found = measure_steps(Engine(slower=1.4), goal(ttft_p99_ms=300))
    assert slower(found) == pytest.approx(np.full(3, 1.4), abs=0.01)
    low, _, high = (each.rate for each in found.levels)
    assert found.level((low + high) / 2).tpot.slower == pytest.approx(1.4, abs=0.01)
    again = StepTimes.from_json(found.to_json())
    for one, other in zip(again.levels, found.levels, strict=True):
        assert one.rate == other.rate
        for a, b in ((one.ttft, other.ttft), (one.tpot, other.tpot)):
            assert a.slower == b.slower
            np.testing.assert_array_equal(a.ratio, b.ratio)


def test_answers_of_one_token_do_not_make_the_others_faster() -> None:
    mixed = SloSpec(rate=1, ttft_p99_ms=300, prompt_tokens=32, answer_tokens={1: 1, 16: 1})
    found = measure_steps(Engine(slower=1.4, goal=mixed), mixed)
    assert slower(found) == pytest.approx(np.full(3, 1.4), abs=0.01)


def test_what_the_event_model_misses_is_kept_by_quantile() -> None:
    """Under load the first token of the slowest is 50 ms late, and of the fastest not at all."""
    plain = measure_steps(Engine(), goal(ttft_p99_ms=300))
    found = measure_steps(Engine(late=0.050), goal(ttft_p99_ms=300))
    demand = StreamDemand.of(goal(ttft_p99_ms=300), seed=5)
    for share, most in ((0.9, 0.15), (1.0, 0.1)):
        rate = share * found.levels[-1].rate
        one, other = (
            predict_streams(StreamConfiguration(64), steps, demand, SERVING, rate)
            for steps in (plain, found)
        )
        assert other.ms["ttft_p99_ms"] == pytest.approx(one.ms["ttft_p99_ms"] + 50, rel=most)
        assert other.ms["tpot_p99_ms"] == pytest.approx(one.ms["tpot_p99_ms"], rel=0.02)


def test_a_pause_of_the_machine_is_not_held_against_the_engine() -> None:
    found = measure_steps(Engine(pause=1.0), goal(ttft_p99_ms=300))
    plain = measure_steps(Engine(), goal(ttft_p99_ms=300))
    one, other = ([each.ttft.slower for each in steps.levels] for steps in (plain, found))
    assert other == pytest.approx(one, rel=0.02)
    assert max(each.ttft.ratio.max() for each in found.levels) < 1.1


def test_between_rates_what_clients_see_is_interpolated() -> None:
    low = StreamLevel(1.0)
    high = StreamLevel(3.0, Correction(2.0, 1 + PLACES), Correction(3.0, 1 + 2 * PLACES))
    steps = replace(STEPS, levels=(low, high))
    between = steps.level(1.5)
    assert (between.ttft.slower, between.tpot.slower) == (1.25, 1.5)
    assert between.ttft.real(np.array([0.3, np.inf, 0.1])) == pytest.approx([0.375, np.inf, 0.1])
    found = between.tpot.real(np.array([0.02, np.nan, 0.01]))
    assert found == pytest.approx([0.03, np.nan, 0.01], nan_ok=True)
    assert (steps.level(0.1), steps.level(9.0)) == (low, high)
    assert STEPS.level(2.0).tpot.slower == 1
    assert STEPS.level(2.0).ttft.real(np.array([0.2])) == 0.2


def test_rates_at_which_too_few_would_come_are_not_measured() -> None:
    slow = StepTimes((1,), (1.0,), 0.0)
    assert with_rates(slow, Engine(), goal(ttft_p99_ms=300)).levels == ()


@pytest.mark.parametrize("request_seconds", [0.0, 0.002])
def test_what_each_request_adds_is_seen_in_those_sent_together(
    request_seconds: float,
) -> None:
    found = measure_steps(Engine(request=request_seconds), goal(ttft_p99_ms=300))
    assert found.request == pytest.approx(request_seconds)
    assert found.overhead == pytest.approx(np.full(24, 0.003))
    assert StepTimes.from_json(found.to_json()).request == found.request


def test_no_more_are_measured_than_the_model_takes() -> None:
    assert measure_steps(Engine(most=8), goal(ttft_p99_ms=300)).sequences == (1, 2, 4, 8)
    with pytest.raises(WorkError, match="did not answer"):
        measure_steps(Engine(most=0), goal(ttft_p99_ms=300))


def test_answers_of_one_token_have_no_further_steps() -> None:
    one = SloSpec(rate=1, ttft_p99_ms=100, prompt_tokens=32, answer_tokens=1)
    found = measure_steps(Engine(), one)
    assert found.sequences == (1,)
    assert rank_streams(found, one, SERVING)[0].predicted > 0


@pytest.mark.parametrize("values", [{}, {"sequences": []}, [], None])
def test_what_is_no_measurement_is_refused(values: object) -> None:
    with pytest.raises(ValueError, match="no times of steps"):
        StepTimes.from_json(values)
    short = {"slower": 1.0, "ratio": [1.0]}
    level = {"rate": 1.0, "ttft": short, "tpot": short}
    for damaged in ({"seconds": [1.0]}, {"levels": [level]}):
        with pytest.raises(ValueError, match="lengths differ"):
            StepTimes.from_json({**STEPS.to_json(), **damaged})


def test_each_prompt_begins_elsewhere_and_lengths_are_learnt() -> None:
    texts = PromptTexts(["one two three four five six seven", "and a second text"])
    made = [texts.make(5, number) for number in range(40)]
    assert len(set(made)) == 40
    before = len(made[0])
    texts.learn(5, counted=10.0)
    assert len(texts.make(5, 0)) == pytest.approx(before / 2, abs=1)
    assert len(texts.make(10_000, 3)) > 1000


def load(first: list[float], last: list[float], answers: list[int]) -> StreamedLoad:
    many = len(first)
    due, prompts = np.full(many, 1.0), np.ones(many, np.int64)
    return StreamedLoad(
        *(due, due, np.array(first), np.array(last), prompts, np.array(answers), {}, 0.5)
    )


def test_times_of_streams_count_from_when_they_were_due() -> None:
    found = load([1.1, np.inf, 1.4], [2.1, np.inf, 1.4], [11, 0, 1])
    assert found.ttft == pytest.approx([0.1, np.inf, 0.4])
    assert found.tpot == pytest.approx([0.1, np.inf, 0.0])
    assert found.tpot_with_first == pytest.approx([0.1, np.inf, 0.4])
    assert found.client_share == pytest.approx(0.5 / 2.1)
    assert found.part(1).ttft == pytest.approx([0.1])
