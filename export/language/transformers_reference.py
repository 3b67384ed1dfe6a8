"""The reference for all variants: the results of transformers on held-out text.

This program runs in its own process, in float32, once for all variants. It writes the
log-probabilities at every token that counts in the loss, transformers' greedy continuations of some
prompts, and transformers' tokenization of the prompts' texts. The prompts are cut from the tokens
of the held-out text, decoded to text, and tokenized again, so that a variant can be given the same
prompts as text too.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from millrace.export.language.token_pieces import TokenPieces, prompt_lengths
from millrace.models.common.arrays import Array
from millrace.models.common.language_generation import ids_of
from millrace.models.common.quiet import quiet
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

LOG_PROBABILITIES = "log_probabilities.npy"
ANSWERS = "answers.npz"
TEXTS = "texts.json"
PIECES = "pieces.npz"
AT_ONCE = 16
"""Batch size for prompts of equal length."""
SPARE = 8
"""Number of additional prompts. They replace duplicates, and prompts with a tie (`TIE`) in the
continuation."""
TIE = 1e-4
"""Two logits that differ by at most this are a tie: float32 rounding decides between them."""


@dataclass(frozen=True)
class Reference:
    """Summary of the results of transformers on held-out text.

    Attributes:
        perplexity: perplexity over the tokens that count in the loss.
        tokens: number of these tokens.
        prompts: number of prompts that were continued greedily.
        new_tokens: tokens of each continuation.
        texts: distinct prompts as text, each with its continuation up to the end token. A prompt is
            left out if the two largest logits are a tie (`TIE`) at any token of the continuation.
    """

    perplexity: float
    tokens: int
    prompts: int
    new_tokens: int
    texts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Answer:
    """A prompt and its greedy continuation.

    Attributes:
        prompt: int64 `[n]`.
        tokens: int64 `[new tokens]`, the continuation.
        margins: float32 `[new tokens]`, the largest logit minus the second largest.
    """

    prompt: Array
    tokens: Array
    margins: Array

    @property
    def is_clear(self) -> bool:
        """Whether the two largest logits differ by more than `TIE` at every token."""
        return bool((self.margins > TIE).all())


def write_reference_in_subprocess(
    checkpoint: Path, pieces: TokenPieces, folder: Path, prompts: int, new: int, limits: Limits
) -> Reference:
    """Run transformers on held-out text in a subprocess, and write the results into a folder.

    Args:
        checkpoint: folder of the model.
        pieces: the held-out text.
        folder: folder to write.
        prompts: number of prompts to continue greedily.
        new: tokens of each continuation.
        limits: time and memory limits of the subprocess.

    Raises:
        WorkError: the checkpoint cannot be read, or the run exceeded the limits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pieces.write(folder / PIECES)
    words: list[str | Path] = [checkpoint, folder / PIECES, folder]
    words += ["--prompts", str(prompts), "--new", str(new)]
    told = run_in_subprocess(
        "millrace.export.language.transformers_reference",
        words,
        limits,
        what="the run of transformers on held-out text",
        retry_killed=False,
        may_fork=True,
    )
    values = json.loads(told.splitlines()[-1])
    return Reference(**{**values, "texts": tuple((text, more) for text, more in values["texts"])})


def read_answers(folder: Path) -> list[Answer]:
    """Return the prompts and continuations of `write_answers`."""
    with np.load(folder / ANSWERS, allow_pickle=False) as file:
        ends = np.cumsum(file["lengths"])
        prompts = [
            file["prompts"][end - length : end]
            for end, length in zip(ends, file["lengths"], strict=True)
        ]
        tokens, margins = file["tokens"], file["margins"]
    return [Answer(*each) for each in zip(prompts, tokens, margins, strict=True)]


def write_answers(folder: Path, answers: Sequence[Answer]) -> None:
    """Write prompts and continuations for `read_answers`."""
    np.savez(
        folder / ANSWERS,
        prompts=np.concatenate([each.prompt for each in answers]),
        lengths=np.array([len(each.prompt) for each in answers], np.int64),
        tokens=np.stack([each.tokens for each in answers]),
        margins=np.stack([each.margins for each in answers]),
    )


def scored(model: Any, pieces: TokenPieces, path: Path) -> float:
    """Write log-probabilities at all tokens that count in the loss, and return the perplexity.

    The file is float32 `[counted, vocabulary]`. It is a memory map, so it is never in memory as a
    whole.
    """
    import torch

    vocabulary = model.config.get_text_config().vocab_size
    shape = (pieces.counted, vocabulary)
    kept = open_memmap(path, mode="w+", dtype=np.float32, shape=shape)  # type: ignore[no-untyped-call]
    row, loss = 0, 0.0
    for ids, counted in pieces.pieces():
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1]
        wanted = torch.from_numpy(counted)
        logs = torch.log_softmax(logits[wanted].float(), dim=-1)
        labels = torch.from_numpy(ids[1:])[wanted]
        loss -= float(logs.gather(1, labels[:, None]).double().sum())
        kept[row : row + len(logs)] = logs.numpy()
        row += len(logs)
    kept.flush()
    return float(np.exp(loss / max(row, 1)))


def continued(model: Any, prompts: Sequence[Array], new: int) -> list[Answer]:
    """Return the greedy continuations by transformers' `generate`, in the order of the prompts."""
    import torch
    from transformers import GenerationConfig

    plain = GenerationConfig(  # type: ignore[no-untyped-call]
        **{"max_new_tokens": new, "do_sample": False, "pad_token_id": 0},
        **{"return_dict_in_generate": True, "output_logits": True},
    )
    # without the model's own stop tokens and penalties, which would disturb the comparison
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    made: dict[int, Answer] = {}
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
    for _, group in groupby(order, key=lambda n: len(prompts[n])):
        numbers = list(group)
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            ids = torch.from_numpy(np.stack([prompts[n] for n in some]))
            told = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=plain)
            tokens = told.sequences[:, ids.shape[1] :].numpy()
            best = torch.stack([step.topk(2).values for step in told.logits], dim=1).float()
            margins = (best[..., 0] - best[..., 1]).numpy()
            for place, n in enumerate(some):
                made[n] = Answer(prompts[n], tokens[place], margins[place])
    return [made[n] for n in range(len(prompts))]


def split_texts(tokenizer: Any, prompts: Sequence[Array]) -> list[tuple[str, list[int]]]:
    """Return the texts of prompts, each with its token ids from the tokenizer.

    A beginning-of-text token that the tokenizer adds to every text is removed from the text.
    """
    texts = [str(tokenizer.decode(prompt)) for prompt in prompts]
    if (begin := tokenizer.bos_token) and tokenizer.bos_token_id in tokenizer("").input_ids:
        texts = [text.removeprefix(begin) for text in texts]
    return [(text, list(tokenizer(text).input_ids)) for text in texts if text]


def continuation_texts(
    tokenizer: Any, texts: Sequence[str], answers: Sequence[Answer], ends: Collection[int]
) -> tuple[tuple[str, str], ...]:
    """Return distinct prompts as text, each with its continuation up to an end token.

    A prompt is left out if the two largest logits are a tie (`TIE`) at any token of the
    continuation.

    Args:
        tokenizer: the transformers tokenizer.
        texts: the prompts as text.
        answers: the continuation of each prompt.
        ends: ids of the end tokens.
    """
    found: dict[str, str] = {}
    for text, answer in zip(texts, answers, strict=True):
        if answer.is_clear and text.strip():
            tokens = answer.tokens.tolist()
            end = next((n for n, token in enumerate(tokens) if token in ends), None)
            found[text] = str(tokenizer.decode(tokens[:end], skip_special_tokens=True))
    return tuple(found.items())


def main() -> None:
    """Write the reference's files, and print its summary as JSON."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("checkpoint", type=Path)
    made.add_argument("pieces", type=Path)
    made.add_argument("folder", type=Path)
    made.add_argument("--prompts", type=int, default=64)
    made.add_argument("--new", type=int, default=32)
    given = made.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        given.checkpoint, local_files_only=True, trust_remote_code=False
    )
    with quiet("transformers"), torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(
            given.checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
        model.train(False)
        ends = ids_of(model.generation_config.eos_token_id) or {tokenizer.eos_token_id}
        pieces = TokenPieces.read(given.pieces)
        perplexity = scored(model, pieces, given.folder / LOG_PROBABILITIES)
        context = model.config.get_text_config().max_position_embeddings
        plain = context - tokenizer.num_special_tokens_to_add()
        cut = pieces.prompts(given.prompts + SPARE, prompt_lengths(plain, given.new))
        split = split_texts(tokenizer, cut)
        whole = [(text, ids) for text, ids in split if len(ids) <= context - given.new]
        answers = continued(model, [np.array(ids) for _, ids in whole] or cut, given.new)
        kept = answers[: given.prompts]
        write_answers(given.folder, kept)
    (given.folder / TEXTS).write_text(json.dumps(split[: given.prompts]))
    texts = continuation_texts(tokenizer, [text for text, _ in whole], answers[: len(whole)], ends)
    texts = texts[: given.prompts]
    found = Reference(perplexity, pieces.counted, len(kept), given.new, texts)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main()
