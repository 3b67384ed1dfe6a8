"""What is decided about the variants of a language model, of plain values."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from millrace.export.language import fidelity
from millrace.export.language.engine_speed import Continuation, speed_of
from millrace.export.language.fidelity import Greedy, compare_tokens, log_softmax
from millrace.export.language.language_variants import LANGUAGE_VARIANTS
from millrace.export.language.token_pieces import TokenPieces, prompt_lengths, speed_lengths
from millrace.export.language.transformers_reference import (
    LOG_PROBABILITIES,
    Answer,
    continuation_texts,
    read_answers,
    write_answers,
)
from millrace.export.language.variant_folder import NEEDED, VariantFolder
from millrace.export.openvino.decoder_attention import (
    Attended,
    Attention,
    other_kind,
    refusal,
    unlike,
)
from millrace.export.openvino.decoder_ir import causal_mask
from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError

NAN = float("nan")


@pytest.mark.parametrize(
    ("seen", "context", "reason"),
    [
        ([Attended(), Attended()], 64, None),
        ([], 64, None),
        ([Attended(sliding_window=64)] * 2, 64, None),
        ([Attended(sliding_window=63), Attended()], 64, "looks back 63 tokens only"),
        ([Attended(sliding_window=64)] * 2, None, "its context is any length"),
        ([Attended()], 64, "1 attention calls for 2 layers"),
        ([Attended(), Attended(softcap=50.0)], 64, "soft-capped"),
        ([Attended(), Attended(sinks=True)], 64, "sinks"),
        ([Attended(biased=True), Attended()], 64, "a bias of its own"),
    ],
)
def test_only_plain_causal_attention_is_served(
    seen: list[Attended], context: int | None, reason: str | None
) -> None:
    found = refusal(2, context, seen)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("kinds", "takes", "alibi", "reason"),
    [
        (["full_attention"], {"past_key_values", "position_ids"}, False, None),
        ([], {"past_key_values", "position_ids"}, False, None),
        (["full_attention", "linear_attention"], {"past_key_values", "position_ids"}, False, "lin"),
        ([], {"cache_params"}, False, "no layers that keep keys and values"),
        ([], {"past_key_values"}, False, "ALiBi"),
        ([], {"past_key_values", "position_ids"}, True, "ALiBi"),
    ],
)
def test_a_decoder_of_another_kind_is_refused_before_it_is_asked(
    kinds: list[str], takes: set[str], alibi: bool, reason: str | None
) -> None:
    found = unlike(kinds, takes, alibi)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("cached", "counted", "fits"), [(2, 2, True), (1, 2, False), (2, 3, False)]
)
def test_layers_and_attentions_are_counted(cached: int, counted: int, fits: bool) -> None:
    assert (other_kind(2, cached, counted) is None) == fits


@pytest.mark.parametrize(("shift", "biased"), [(0.0, False), (-1.0, True)])
def test_a_bias_of_the_decoder_s_own_is_seen(shift: float, biased: bool) -> None:
    mask = causal_mask(torch.ones(1, 3), 0, 3)
    attention = Attention(mask)
    heads = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8), torch.ones(1, 2, 3, 8)
    answer, _ = attention(torch.nn.Module(), *heads, mask + shift)
    assert answer.shape == (1, 3, 4, 8)
    assert attention.seen == [Attended(biased=biased)]


def answer(tokens: list[int], margins: list[float]) -> Answer:
    return Answer(np.array([5]), np.array(tokens), np.array(margins, np.float32))


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([1, 2, 3], Greedy(1, 1, 0)),
        ([1, 9, 9], Greedy(1, 0, 1)),  # the second token's margin is as good as none
        ([9, 2, 3], Greedy(1, 0, 0)),
        ([1, 2, 9], Greedy(1, 0, 0)),
        ([1, 2], Greedy(1, 0, 0)),
    ],
)
def test_only_a_tie_excuses_another_token(told: list[int], found: Greedy) -> None:
    assert compare_tokens([answer([1, 2, 3], [0.5, 1e-5, 0.5])], [told]) == found
    assert found.exact == (found.equal + found.ties == 1)


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    wanted = [answer([1, 2], [0.1, 0.2]), Answer(np.arange(3), np.array([3, 4]), np.ones(2))]
    write_answers(tmp_path, wanted)
    for one, other in zip(read_answers(tmp_path), wanted, strict=True):
        assert np.array_equal(one.prompt, other.prompt)
        assert np.array_equal(one.tokens, other.tokens)
        assert np.allclose(one.margins, other.margins)


def test_prompts_are_written_as_text_up_to_its_end_unless_a_tie_decided() -> None:
    tokenizer = SimpleNamespace(
        decode=lambda tokens, skip_special_tokens: "".join(map(chr, tokens)),
    )
    answers = [
        answer([98, 99, 0, 100], [1.0] * 4),
        answer([98, 99], [1.0, 1e-5]),
        answer([98], [1.0]),
        answer([100], [1.0]),
    ]
    found = continuation_texts(
        tokenizer, ["whole", "tied", " ", "whole"], answers[:3] + [answers[0]], {0, 5}
    )
    assert found == (("whole", "bc"),)
    assert continuation_texts(tokenizer, ["whole"], answers[:1], {0, 99}) == (("whole", "b"),)
    assert continuation_texts(tokenizer, ["a", "b"], answers[2:], {0}) == (("a", "b"), ("b", "d"))


def numbered(*lengths: int, answer: Array | None = None) -> TokenPieces:
    return TokenPieces(np.arange(sum(lengths)), np.array(lengths), answer)


def test_the_first_token_of_a_piece_does_not_count() -> None:
    answers = np.array([True, False, True, True, True, True])
    found = [(ids.tolist(), counted.tolist()) for ids, counted in numbered(3, 1, 2).pieces()]
    assert found == [([0, 1, 2], [True, True]), ([4, 5], [True])]
    assert numbered(3, 1, 2).counted == 3
    assert numbered(3, 1, 2, answer=answers).counted == 2


def test_pieces_are_cut_to_the_context_and_taken_while_they_fit() -> None:
    cut = numbered(6, 2, 4).first(5, context=4)
    assert [ids.tolist() for ids, _ in cut.pieces()] == [[0, 1, 2, 3], [6, 7]]
    assert cut.counted == 4
    assert numbered(6).first(1, context=4).counted == 0


def test_prompts_are_cut_side_by_side_and_come_again() -> None:
    made = [prompt.tolist() for prompt in numbered(5, 4).prompts(6, (2,))]
    assert made == [[0, 1], [5, 6], [2, 3], [7, 8], [0, 1], [5, 6]]


def test_no_prompts_come_of_no_text() -> None:
    with pytest.raises(InputError, match="no text"):
        numbered(1, 1).prompts(2, (2,))


def test_pieces_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(InputError, match="do not fit together"):
        TokenPieces(np.arange(4), np.array([2, 1]))


def test_pieces_are_read_as_they_were_written(tmp_path: Path) -> None:
    wanted = numbered(3, 2, answer=np.array([True, False, True, True, False]))
    wanted.write(tmp_path / "pieces.npz")
    found = TokenPieces.read(tmp_path / "pieces.npz")
    assert found.answer is not None
    assert found.answer.tolist() == [True, False, True, True, False]
    assert found.lengths.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("context", "lengths"), [(256, (8, 24, 48, 96)), (63, (8, 24)), (20, (4,))]
)
def test_prompts_leave_room_for_the_answer(context: int, lengths: tuple[int, ...]) -> None:
    assert prompt_lengths(context, 16) == lengths


def test_a_context_without_room_is_told() -> None:
    with pytest.raises(InputError, match="no room"):
        prompt_lengths(16, 16)
    with pytest.raises(WorkError, match="too short"):
        speed_lengths(2)


def test_logarithms_of_large_logits_are_finite() -> None:
    logs = log_softmax(np.array([[1000.0, 0.0], [0.0, 0.0]], np.float32))
    assert np.allclose(logs, [[0.0, -1000.0], [-np.log(2)] * 2])


def test_speed_is_of_all_streams_together() -> None:
    def run(prompts: list[Array], new: int) -> Continuation:
        return Continuation([[1] * new for _ in prompts], 0.5, 0.5 + 0.1 * (new - 1))

    found = speed_of(run, [np.arange(8)] * 32, 11)  # type: ignore[arg-type]
    assert found.time_to_first_token_ms == pytest.approx(500)
    assert found.ms_per_token == pytest.approx(100)
    assert found.tokens_per_second == pytest.approx({1: 11 / 1.5, 8: 88 / 1.5, 32: 352 / 1.5})


def test_a_form_must_be_whole(tmp_path: Path) -> None:
    for name in NEEDED:
        (tmp_path / name).write_text(name)
    assert VariantFolder.read(tmp_path).size_bytes == sum(len(name) for name in NEEDED)
    (tmp_path / NEEDED[0]).unlink()
    with pytest.raises(InputError, match="lacks files") as error:
        VariantFolder.read(tmp_path)
    assert error.value.seen == f"no {NEEDED[0]}"


@pytest.mark.parametrize("name", NEEDED)
def test_a_tampered_file_changes_the_digest(tmp_path: Path, name: str) -> None:
    for each in NEEDED:
        (tmp_path / each).write_text(each)
    before = VariantFolder.read(tmp_path).digest
    assert VariantFolder.read(tmp_path).digest == before
    (tmp_path / name).write_text(f"{name} ")
    assert VariantFolder.read(tmp_path).digest != before


def test_a_form_that_needs_a_package_says_what_installs_it() -> None:
    variant = LANGUAGE_VARIANTS["openvino-int8"]
    assert variant.lacking() is None
    lacking = replace(variant, package="no_such_module", distribution="no-such").lacking()
    assert lacking == "the package no-such is not installed: pip install no-such"


@pytest.mark.parametrize("numbers", [2**22, 4])
def test_a_form_is_compared_token_by_token(
    tmp_path: Path, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fidelity, "NUMBERS", numbers)
    pieces = TokenPieces(np.array([0, 1, 0, 1]), np.array([4]), np.array([True, True, False, True]))
    wanted = np.log(np.float32([[0.25, 0.75], [0.5, 0.5]]))
    np.save(tmp_path / LOG_PROBABILITIES, wanted)
    told = np.log(np.float32([[0.25, 0.75], [9.0, 9.0], [0.8, 0.2], [9.0, 9.0]]))
    found = fidelity.fidelity(lambda ids: told, pieces, tmp_path)
    assert found.tokens == 2
    assert found.perplexity == pytest.approx((0.75 * 0.2) ** -0.5)
    assert found.mean_kl == pytest.approx(0.5 * (0.5 * np.log(0.5 / 0.8) + 0.5 * np.log(0.5 / 0.2)))
    assert found.top1_agreement == 1.0


@pytest.mark.parametrize("logit", [NAN, float("inf")])
def test_what_is_not_finite_stays_so(tmp_path: Path, logit: float) -> None:
    np.save(tmp_path / LOG_PROBABILITIES, np.log(np.float32([[0.25, 0.75]])))
    told = np.float32([[logit, 0.0], [0.0, 0.0]])
    found = fidelity.fidelity(lambda ids: told, numbered(2), tmp_path)
    assert not np.isfinite(found.perplexity)
    assert not np.isfinite(found.mean_kl)
