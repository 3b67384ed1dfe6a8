"""Language models: their configuration, and what the client makes of answers."""

import threading

import pytest

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.model_config import from_text, specific, to_text
from millrace.serving.triton.streams.call_watchdog import Pulse, Watchdog
from millrace.serving.triton.streams.stream_client import classify_error
from millrace.serving.triton.streams.stream_request import (
    Piece,
    Sampling,
    build_request,
    join_pieces,
    parse_error,
)


def test_a_configuration_survives_its_text() -> None:
    made = openvino_config("lm", GenerationSpec(draft="small"), version_policy=specific([3]))
    config = from_text(to_text(made))
    values = {key: value.string_value for key, value in config.parameters.items()}
    assert config.model_transaction_policy.decoupled
    assert (config.max_batch_size, config.instance_group[0].count) == (0, 1)
    assert (values["draft_model"], values["num_assistant_tokens"]) == ("draft", "5")
    assert values["enable_prefix_caching"] == "true"
    assert all(each.optional for each in config.input)


def test_a_cpu_is_not_shared_between_gpus() -> None:
    with pytest.raises(InputError, match="tensor_parallel_size"):
        openvino_config("lm", GenerationSpec(tensor_parallel_size=2), version_policy=specific([1]))


def test_only_what_is_set_is_sent() -> None:
    assert Sampling().as_json() == "{}"
    assert Sampling(temperature=0, stop=("a",)).as_json() == '{"temperature": 0, "stop": ["a"]}'
    request = build_request("lm", [{"role": "user", "content": "é"}], Sampling(), version=None)
    assert {each.name for each in request.inputs} >= {"messages", "stream", "sampling_parameters"}
    assert "text_input" not in {each.name for each in request.inputs}


def test_pieces_are_joined() -> None:
    pieces = [
        Piece(("a", "b"), ("", ""), 3, (1, 1), is_last=False),
        Piece(("c", ""), ("stop", ""), 3, (2, 0), is_last=False),
        Piece(("", "d"), ("stop", "length"), 3, (0, 4), is_last=True),
    ]
    assert join_pieces(pieces) == Piece(("ac", "bd"), ("stop", "length"), 3, (3, 5), is_last=True)


@pytest.mark.parametrize(
    ("text", "kind", "seen"),
    [
        ("invalid: n is 0", InputError, "n is 0"),
        ("[request id: <id_unknown>] invalid: n is 0", InputError, "n is 0"),
        ("full: 3 requests wait", TransientError, "3 requests wait"),
        ("unavailable: the engine failed", TransientError, "the engine failed"),
        ("Stub process 'lm_0_0' is not healthy.", TransientError, "not healthy"),
        ("Request for unknown model: 'x' is not found", InputError, "unknown model"),
        ("something else", WorkError, "something else"),
    ],
)
def test_texts_of_the_server_are_errors_of_ours(text, kind, seen) -> None:
    error = parse_error(text, "lm")
    assert type(error) is kind
    assert seen in str(error.seen)
    assert "invalid:" not in str(error)


class Call:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def cancel(self) -> None:
        self.ended.set()


def test_a_call_that_hears_nothing_of_a_model_that_beats_is_ended() -> None:
    silence = Watchdog(0.2, lambda target: Pulse.BEATING if target[0] == "ours" else Pulse.QUIET)
    ours, late = Call(), Call()
    with silence.watch(late, ("vllm", None)), silence.watch(ours, ("ours", None)):
        assert not ours.ended.wait(0.3), "it may only be late"
        assert ours.ended.wait(10), "it waits for a process that is gone"
        assert not late.ended.is_set()
    silence.close()


def test_what_answers_to_nothing_tells_of_a_model() -> None:
    def pulse(text: str) -> Pulse:
        return classify_error(parse_error(text, "lm"))

    assert pulse("invalid: the prompt is empty, and must have at least one token") is Pulse.BEATING
    assert pulse("Error generating stream: The decoder prompt cannot be empty") is Pulse.QUIET
    assert pulse("full: 3 requests wait already") is Pulse.QUIET
    assert pulse("Failed to process the request(s) for model: Stub process died") is Pulse.DEAD


def test_a_call_that_waits_for_the_dead_is_ended() -> None:
    silence = Watchdog(0.1, lambda target: Pulse.DEAD if target == ("dead", 2) else Pulse.QUIET)
    waiting, alive, idle = Call(), Call(), Call()
    with silence.watch(idle, ("dead", 2)):
        pass
    with silence.watch(alive, ("lives", 2)), silence.watch(waiting, ("dead", 2)):
        assert waiting.ended.wait(10)
        assert not alive.ended.is_set(), "it is only late"
        assert not idle.ended.is_set(), "nobody waits for it"
        assert alive.ended.wait(10), "nobody waits for ever"
    assert silence.was_ended(waiting)
    assert not silence.was_ended(waiting), "it is told once"
    assert not silence.was_ended(idle)
    silence.close()
