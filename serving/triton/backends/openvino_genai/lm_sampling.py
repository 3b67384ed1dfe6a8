"""Parse and check `sampling_parameters`, with the names of Triton's vLLM backend."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lm_errors import invalid  # type: ignore[import-not-found]

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
SEEDS = 2**63
PENALTIES = ("presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when an answer ends.

    Attributes:
        temperature: the sampling temperature; 0 always chooses the likeliest token.
        top_p: choose among the likeliest tokens whose probabilities sum up to this, in (0, 1].
        top_k: choose among this number of the likeliest tokens; None: all tokens.
        repetition_penalty: above 1 makes the tokens of prompt and answer less likely.
        seed: equal seeds give equal answers; None: a random seed.
        stop: texts that end an answer; the answer does not include them.
        max_tokens: the largest number of tokens in one answer; None: the default.
        min_tokens: the smallest number of tokens in one answer.
        n: the number of answers to the prompt.
        ignore_eos: continue after an end-of-text token, up to max_tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether the answer is deterministic."""
        return self.temperature == 0


def parse_sampling(text: str, most: int) -> Sampling:
    """Parse the JSON object of a request's sampling parameters; null means the default.

    Args:
        text: the JSON; empty: all defaults.
        most: the largest n that is allowed.

    Raises:
        RequestError: the text is not a JSON object, a key is unknown, or a value is not valid.
    """
    values = parse_json("sampling_parameters", text) if text else {}
    if not isinstance(values, Mapping):
        raise invalid(f"sampling_parameters is {describe(values)}, and must be a JSON object")
    unknown = sorted(set(values) - set(READERS))
    if unknown:
        raise invalid(
            f"sampling_parameters has unknown keys: {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(sorted(READERS))}"
        )
    read = {key: READERS[key](key, value) for key, value in values.items() if value is not None}
    sampling = Sampling(**{key: value for key, value in read.items() if key not in PENALTIES})
    if sampling.n > most:
        raise invalid(f"n is {sampling.n}, and must be at most {most}")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise invalid(
            f"min_tokens is {sampling.min_tokens}, and must be at most max_tokens, "
            f"{sampling.max_tokens}"
        )
    return sampling


def parse_json(name: str, text: str) -> Any:
    """Parse standard JSON, which has no NaN or Infinity.

    Raises:
        RequestError: the text is not JSON.
    """

    def reject(word: str) -> Any:
        raise invalid(f"{name} has {word}, which is not JSON")

    try:
        return json.loads(text, parse_constant=reject)
    except json.JSONDecodeError as error:
        raise invalid(f"{name} is not JSON: {error}") from None
    except (RecursionError, ValueError):
        raise invalid(
            f"{name} is JSON that cannot be read: it is nested too deeply, or a number is too long"
        ) from None


def describe(value: Any) -> str:
    """Return a value as JSON for a message, shortened to 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _number(lowest: float, highest: float, *, open_below: bool = False) -> Callable[..., float]:
    def read(key: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        within = is_number and abs(value) <= 1e300 and lowest <= value <= highest
        if not within or (open_below and value == lowest):
            above = f"above {lowest:g}" if open_below else f"at least {lowest:g}"
            bound = above if math.isinf(highest) else f"{above} and at most {highest:g}"
            raise invalid(f"{key} is {describe(value)}, and must be a number, {bound}")
        return float(value)

    return read


def _whole(lowest: int, highest: int) -> Callable[..., int]:
    def read(key: str, value: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not lowest <= value <= highest:
            raise invalid(
                f"{key} is {describe(value)}, and must be a whole number from {lowest} to {highest}"
            )
        return int(value)

    return read


def _top_k(key: str, value: Any) -> int | None:
    """Return how many tokens to choose among; None (all) for -1 and 0, as in vLLM."""
    return _whole(-1, 2**31 - 1)(key, value) if value not in (0, -1) else None


def _zero_penalty(key: str, value: Any) -> None:
    """Refuse a penalty other than 0, because the engine applies penalties wrongly.

    OpenVINO GenAI 2026.4 subtracts the penalty from the absolute value of a logit. If the logit is
    negative, as for most tokens of many models, the token becomes likelier, and the answer repeats
    itself.
    """
    if isinstance(value, bool) or value != 0:
        raise invalid(
            f"{key} is {describe(value)}, and must be 0, because the engine of this model applies "
            "it wrongly to negative logits; use repetition_penalty"
        )


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"{key} is {describe(value)}, and must be true or false")
    return value


def _stop_texts(key: str, value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    right = isinstance(stops, list) and all(isinstance(stop, str) and stop for stop in stops)
    if not right or len(stops) > MAX_STOPS or any(len(s) > MAX_STOP_CHARACTERS for s in stops):
        raise invalid(
            f"{key} is {describe(value)}, and must be a string or a list of at most {MAX_STOPS} "
            f"strings, each of 1 to {MAX_STOP_CHARACTERS} characters"
        )
    return tuple(stops)


READERS: Mapping[str, Callable[..., Any]] = {
    "temperature": _number(0.0, math.inf),
    "top_p": _number(0.0, 1.0, open_below=True),
    "top_k": _top_k,
    "repetition_penalty": _number(0.0, math.inf, open_below=True),
    "presence_penalty": _zero_penalty,
    "frequency_penalty": _zero_penalty,
    "seed": _whole(-SEEDS, SEEDS - 1),
    "stop": _stop_texts,
    "max_tokens": _whole(1, 2**31 - 1),
    "min_tokens": _whole(0, 2**31 - 1),
    "n": _whole(1, 2**31 - 1),
    "ignore_eos": _boolean,
}
