"""What a version of a language model must answer: the prompts it was certified with, greedily."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os.path import commonprefix
from re import sub
from typing import Any

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.subprocess_runner import run_in_subprocess
from millrace.serving.release.trial import alone_limits
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language.stream_request import Sampling
from millrace.serving.triton.version_folder import Artifact

INEXACT = 0.5
"""How much of its answers a form in short numbers may give otherwise, on average. One token that
falls otherwise changes all that follow, and which do depends on the machine and on what else is in
flight; a model that is another or is broken gives nearly all of them otherwise.
"""

REPLACED = "\ufffd"


@dataclass(frozen=True)
class GoldenPrompts:
    """What a language model must answer; an `Expected`.

    Attributes:
        prompts: texts to continue.
        answers: what its engine answered to each when it was certified.
        max_tokens: of an answer.
        exact: whether an answer is the same whatever else the engine works on.
        latency_slo_ms: p99 of the time to the first token that the probe must hold; None for any.
        caution: what a reader of the evidence should know; empty for nothing.
        transformers: what transformers answered; nothing where that was not kept.
    """

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    max_tokens: int
    exact: bool
    latency_slo_ms: float | None = None
    caution: str = ""
    transformers: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, golden: Mapping[str, Any], latency_slo_ms: float | None, caution: str = ""
    ) -> "GoldenPrompts":
        """Return what a version's `golden.json` says.

        Raises:
            WorkError: it says no prompt, or not an answer to each.
        """
        prompts, answers = tuple(golden["prompts"]), tuple(golden["answers"])
        transformers = tuple(golden.get("transformers", ()))
        if not prompts or {len(answers), len(transformers) or len(answers)} != {len(prompts)}:
            raise WorkError(
                "its golden answers are not whole",
                seen=f"{len(prompts)} prompts, {len(answers)} answers, "
                f"{len(transformers)} of transformers",
                hint="register the model again",
            )
        told = int(golden["max_tokens"]), bool(golden["exact"])
        return cls(prompts, answers, *told, latency_slo_ms, caution, transformers)

    def first(self, count: int) -> "GoldenPrompts":
        """Return the same with the first prompts only."""
        return replace(
            self,
            prompts=self.prompts[:count],
            answers=self.answers[:count],
            transformers=self.transformers[:count],
        )

    def try_alone(self, artifact: Artifact) -> None:
        """Open the files in a process of its own and continue one prompt.

        Not with vLLM: it need not be here, and its backend on the server is a process by itself.
        """
        if artifact.engine != "vllm":
            self._alone(artifact, self.prompts[:1], 2)

    def validate_alone(self, artifact: Artifact) -> float:
        """Continue all prompts in a process of its own, and compare.

        Not with vLLM: its forms run on GPUs, and the batch job's own engine is a process by itself.

        Raises:
            WorkError: it cannot be opened, or more differs than the certificate admits.
            TransientError: its process was killed.
        """
        if artifact.engine == "vllm":
            return 0.0
        found = self._alone(artifact, self.prompts, self.max_tokens)
        return self._admitted(difference(self.answers, found))

    def _alone(self, artifact: Artifact, prompts: Sequence[str], tokens: int) -> list[str]:
        folder = next(iter(artifact.files.values())).parent
        told = run_in_subprocess(
            "millrace.serving.triton.language.generation_check",
            [folder, str(tokens)],
            alone_limits(artifact.size_bytes),
            what="loading and answering",
            stdin=json.dumps(list(prompts)).encode(),
        )
        return [str(answer) for answer in json.loads(told.splitlines()[-1])]

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Ask one after the other and all at once; return the share of the answers that differs.

        Raises:
            WorkError: more differs than the certificate admits.
            TransientError: the replica went away.
        """
        found = [
            list(self.answered(client, name, version, number)) for number in (1, len(self.prompts))
        ]
        largest = max(difference(self.answers, answers) for answers in found)
        return self._admitted(largest)

    def _admitted(self, largest: float) -> float:
        """Return a difference that the certificate admits; WorkError if it does not."""
        if not largest <= (allowed := 0.0 if self.exact else INEXACT):
            raise WorkError(
                "its answers differ from those of its certificate",
                seen=f"{largest:.1%} of the golden answers",
                valid="none of them, alone as beside others" if self.exact else f"{allowed:.0%}",
            )
        return largest

    def answered(
        self, client: TritonClient, name: str, version: int | None, in_flight: int
    ) -> Iterator[str]:
        """Yield the answer to each prompt in order, so many asked at a time.

        Raises:
            WorkError: it does not answer.
            TransientError: the replica went away, or is too busy.
        """
        sampling = Sampling(temperature=0, max_tokens=self.max_tokens)
        streams = client.streams  # made before there are threads

        def answer(prompt: str) -> str:
            with _told(client):
                return streams.complete(name, prompt, sampling, version=version).texts[0]

        with ThreadPoolExecutor(in_flight) as crowd:
            yield from crowd.map(answer, self.prompts)

    def ask(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> None:
        """Ask for one token."""
        sampling = Sampling(temperature=0, max_tokens=1)
        with _told(client):
            client.streams.complete(name, self.prompts[0], sampling, version=version)

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Ask for nothing: a model that lives says that it is nothing."""
        client.streams.ping(name, version, seconds)


def difference(certified: tuple[str, ...], found: list[str]) -> float:
    """Return the mean share of the answers, in characters, from where they part."""
    pairs = list(zip(certified, found, strict=True))
    kept = [len(commonprefix(pair)) / max(1, *map(len, pair)) for pair in pairs]
    same = [mine == other for mine, other in pairs]
    return 1 - sum(map(max, kept, same)) / len(pairs)


def same_words(transformers: str, found: str) -> bool:
    """Tell whether two answers are of the same tokens, as far as text shows it.

    Tokenizers part in what a space before the first word becomes, and in how many signs stand for
    bytes that are not whole.
    """
    return _plain(transformers) == _plain(found)


def _plain(answer: str) -> str:
    return sub(f"{REPLACED}+", REPLACED, answer.lstrip()).rstrip(REPLACED)


@contextmanager
def _told(client: TritonClient) -> Iterator[None]:
    """Turn what a prompt ends with into what a release knows: the model's fault, or a moment's."""
    try:
        yield
    except TransientError:
        if client.is_ready():  # it is the model that went away, not the server
            raise WorkError("it stopped answering", hint="see Triton's log") from None
        raise
    except MillraceError as error:
        raise WorkError(
            "it did not answer its golden prompts", seen=error.seen or error.what, valid=error.valid
        ) from error
