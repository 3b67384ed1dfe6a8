"""Whether a form continues prompts with the tokens that transformers continues them with."""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.export.language.transformers_reference import TIE, Answer


@dataclass(frozen=True)
class Greedy:
    """Prompts that were continued, and how.

    Attributes:
        prompts: all of them.
        equal: those with the same tokens.
        ties: those that part from transformers at a token whose logit is no more than `TIE` above
            the next one, and are not compared from there on.
    """

    prompts: int
    equal: int
    ties: int

    @property
    def exact(self) -> bool:
        """Whether nothing but a tie tells the form from transformers."""
        return self.prompts > 0 and self.equal + self.ties == self.prompts


def compared(answers: Sequence[Answer], tokens: Sequence[Sequence[int]]) -> Greedy:
    """Compare what the engine continued with transformers' answers.

    Args:
        answers: of transformers.
        tokens: of the engine, for the same prompts in their order.
    """
    equal, ties = 0, 0
    for answer, told in zip(answers, tokens, strict=True):
        wanted = answer.tokens.tolist()
        if list(told) == wanted:
            equal += 1
            continue
        parted = (n for n, pair in enumerate(zip(wanted, told, strict=False)) if len({*pair}) == 2)
        step = next(parted, None)  # None where the engine stopped early
        ties += step is not None and bool(answer.margins[step] <= TIE)
    return Greedy(len(answers), equal, ties)
