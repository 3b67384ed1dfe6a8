import random
from collections.abc import Sequence

import numpy as np
import pytest

from millrace.models.language.corpus.documents import Document
from millrace.models.language.corpus.packing import Packed, best_fit, pack, pieces


def documents(lengths: Sequence[int], *, answers: bool = False) -> list[Document]:
    """Documents of which no two tokens are the same."""
    ends = np.cumsum(lengths)
    return [
        Document(
            np.arange(end - length, end, dtype=np.int32),
            np.arange(length) % 3 == 1 if answers else None,
        )
        for length, end in zip(lengths, ends, strict=True)
    ]


def random_lengths(seed: int, count: int = 500) -> list[int]:
    draw = random.Random(seed)
    return [draw.choice([1, 2, 15, 16, 17, draw.randint(1, 100)]) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("window", [1, 50, 10**6])
def test_every_token_is_there_once_and_its_piece_is_whole(seed: int, window: int) -> None:
    given = documents(random_lengths(seed))
    packed = list(pack(given, 16, window_tokens=window))
    assert all(0 < len(each.ids) <= 16 for each in packed)
    assert all(each.lengths.sum() == len(each.ids) for each in packed)
    found = [p for each in packed for p in np.split(each.ids, np.cumsum(each.lengths)[:-1])]
    wanted = [piece.ids for document in given for piece in pieces(document, 16)]
    assert sorted(p.tolist() for p in found) == sorted(p.tolist() for p in wanted)


def test_a_long_document_is_cut_into_pieces_of_the_context() -> None:
    (document,) = documents([37])
    assert [len(piece.ids) for piece in pieces(document, 16)] == [16, 16, 5]
    assert [len(piece.ids) for piece in pieces(documents([16])[0], 16)] == [16]


def test_the_answers_go_with_their_tokens() -> None:
    given = documents([5, 40, 7, 3], answers=True)
    answers = np.concatenate([document.answer for document in given if document.answer is not None])
    for each in pack(given, 16):
        assert each.answer is not None
        assert (each.answer == answers[each.ids]).all()


def test_the_best_fit_is_taken() -> None:
    # By falling length: 7, 6, 3, 2, 1. The 3 fits behind the 7 exactly, the 2 and 1 behind the 6.
    assert best_fit([6, 7, 3, 2, 1], 10) == [[0, 3, 4], [1, 2]]
    assert best_fit([10, 10], 10) == [[0], [1]]
    assert best_fit([], 10) == []


def test_little_room_is_left_over() -> None:
    lengths = [random.Random(n).randint(1, 200) for n in range(20_000)]
    packed = best_fit(lengths, 256)
    assert sum(lengths) / (256 * len(packed)) > 0.995
    assert sorted(position for sequence in packed for position in sequence) == list(range(20_000))


def test_what_waits_is_bounded() -> None:
    given = 0

    def stream() -> object:
        nonlocal given
        for document in documents([10] * 1000):
            given += 1
            yield document

    packed = pack(stream(), 16, window_tokens=100)  # type: ignore[arg-type]
    next(packed)
    assert given == 10


def test_the_same_documents_make_the_same_sequences() -> None:
    one, two = (list(pack(documents(random_lengths(7)), 32)) for _ in range(2))
    assert [each.ids.tolist() for each in one] == [each.ids.tolist() for each in two]


def test_the_first_token_of_a_piece_is_not_predicted() -> None:
    ids, lengths = np.arange(7, dtype=np.int32), np.array([4, 1, 2], dtype=np.int32)
    assert Packed(ids, lengths, None).loss_tokens == 4
    answer = np.array([True, False, True, True, True, True, False])
    assert Packed(ids, lengths, answer).loss_tokens == 2
