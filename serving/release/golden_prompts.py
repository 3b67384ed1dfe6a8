"""The golden prompts of a language model: its certified answers, generated greedily."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os.path import commonprefix
from re import sub
from typing import Any

from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import run_in_subprocess
from millrace.models.inference.language_engine import engine_of
from millrace.serving.release.trial import subprocess_limits
from millrace.serving.release.version_check import translate_errors
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.streams.stream_request import Sampling
from millrace.serving.triton.version_folder import Artifact

INEXACT = 0.5
"""Largest mean share of the golden answers that a low-precision variant may change. One token that
differs changes all tokens after it, and which one differs depends on the machine and on concurrent
requests; a wrong or broken model changes nearly all answers.
"""

REPLACED = "\ufffd"


@dataclass(frozen=True)
class GoldenPrompts:
    """The certified answers of a language model; implements `VersionCheck`.

    Attributes:
        prompts: texts to continue.
        answers: the certified answer to each prompt, from the model's engine.
        max_tokens: largest number of tokens of an answer.
        exact: whether answers must equal the certified answers. They must if they do not depend on
            concurrent requests.
        latency_slo_ms: limit of the p99 time to the first token, in milliseconds; None: no limit.
        caution: what a reader of the evidence should know; may be empty.
        transformers: the answers of the transformers library; empty if they were not stored.
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
        """Read a version's `golden.json`.

        Raises:
            WorkError: the file has no prompts, or a prompt without an answer.
        """
        prompts, answers = tuple(golden["prompts"]), tuple(golden["answers"])
        transformers = tuple(golden.get("transformers", ()))
        if not prompts or {len(answers), len(transformers) or len(answers)} != {len(prompts)}:
            raise WorkError(
                "the version's golden prompts and answers are incomplete (its file golden.json)",
                seen=f"{len(prompts)} prompts, {len(answers)} answers, "
                f"{len(transformers)} answers of transformers",
                hint="register the model again",
            )
        max_tokens, exact = int(golden["max_tokens"]), bool(golden["exact"])
        return cls(prompts, answers, max_tokens, exact, latency_slo_ms, caution, transformers)

    def first(self, count: int) -> "GoldenPrompts":
        """Return a copy with the first prompts only."""
        return replace(
            self,
            prompts=self.prompts[:count],
            answers=self.answers[:count],
            transformers=self.transformers[:count],
        )

    def smoke_test(self, artifact: Artifact) -> None:
        """Open the model in a subprocess, and continue one prompt.

        A vLLM model is skipped, because vLLM may not be installed here, and on the server it runs
        in a process of its own anyway.
        """
        if engine_of(artifact.files) != "vllm":
            self._generate_in_subprocess(artifact, self.prompts[:1], 2)

    def validate_in_subprocess(self, artifact: Artifact) -> float:
        """Continue all prompts in a subprocess, and compare the answers with the certified ones.

        A vLLM model is skipped, because it needs a GPU, and in a batch job it runs in a process of
        its own anyway.

        Returns:
            The result of `difference`; 0 for a vLLM model.

        Raises:
            WorkError: the model cannot be opened, or more differs than the certificate allows.
            TransientError: the subprocess was killed.
        """
        if engine_of(artifact.files) == "vllm":
            return 0.0
        answers = self._generate_in_subprocess(artifact, self.prompts, self.max_tokens)
        return self._require_allowed(difference(self.answers, answers))

    def _generate_in_subprocess(
        self, artifact: Artifact, prompts: Sequence[str], tokens: int
    ) -> list[str]:
        folder = next(iter(artifact.files.values())).parent
        output = run_in_subprocess(
            "millrace.serving.triton.language.generation_check",
            [folder, str(tokens)],
            subprocess_limits(artifact.size_bytes),
            what="loading and answering",
            stdin=json.dumps(list(prompts)).encode(),
        )
        return [str(answer) for answer in json.loads(output.splitlines()[-1])]

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Send the prompts one by one and all at once, and compare with the certified answers.

        Returns:
            The larger result of `difference` for the two runs.

        Raises:
            WorkError: more differs than the certificate allows.
            TransientError: the replica went away.
        """
        runs = [
            list(self.generate(client, name, version, number)) for number in (1, len(self.prompts))
        ]
        return self._require_allowed(max(difference(self.answers, answers) for answers in runs))

    def _require_allowed(self, largest: float) -> float:
        """Return the difference if the certificate allows it; else raise a WorkError."""
        if not largest <= (allowed := 0.0 if self.exact else INEXACT):
            raise WorkError(
                "the model's answers differ from its certified answers",
                seen=f"{largest:.1%} of the text of the golden answers differs",
                valid="equal answers, for prompts sent one by one and all at once"
                if self.exact
                else f"at most {allowed:.0%}",
            )
        return largest

    def generate(
        self, client: TritonClient, name: str, version: int | None, in_flight: int
    ) -> Iterator[str]:
        """Yield the answer to each prompt in order.

        Args:
            client: the replica.
            name: the name under which the model is loaded there.
            version: the version to send requests to; None: the one that answers by default.
            in_flight: number of concurrent requests.

        Raises:
            WorkError: the model does not answer.
            TransientError: the replica went away, or is too busy.
        """
        sampling = Sampling(temperature=0, max_tokens=self.max_tokens)
        streams = client.streams  # created before the threads use it

        def answer(prompt: str) -> str:
            with translate_errors(client, "golden prompts"):
                return streams.complete(name, prompt, sampling, version=version).texts[0]

        with ThreadPoolExecutor(in_flight) as pool:
            yield from pool.map(answer, self.prompts)

    def send_smallest(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> None:
        """Request one token."""
        sampling = Sampling(temperature=0, max_tokens=1)
        with translate_errors(client, "golden prompts"):
            client.streams.complete(name, self.prompts[0], sampling, version=version)

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Check that the version answers: send an empty prompt, which a live backend rejects."""
        client.streams.ping(name, version, seconds)


def difference(certified: tuple[str, ...], answers: list[str]) -> float:
    """Return the mean share of an answer's characters that come after its first difference."""
    pairs = list(zip(certified, answers, strict=True))
    common = [len(commonprefix(pair)) / max(1, *map(len, pair)) for pair in pairs]
    equal = [one == other for one, other in pairs]
    return 1 - sum(map(max, common, equal)) / len(pairs)


def same_words(transformers: str, answers: str) -> bool:
    """Return whether two answers have the same tokens, as far as their texts show.

    Tokenizers differ in the space before the first word, and in how many replacement characters
    they write for incomplete bytes.
    """
    return _normalize(transformers) == _normalize(answers)


def _normalize(answer: str) -> str:
    return sub(f"{REPLACED}+", REPLACED, answer.lstrip()).rstrip(REPLACED)
