"""Prepares the training of a language model: its base, its tokens, and its baselines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from millrace.export.language.token_pieces import MeasuredText, TokenPieces
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.language_spec import LoraSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec, TrainingSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.families.pretrained import resolve_pretrained
from millrace.models.language.base_checkpoint import ARTIFACT
from millrace.models.language.base_version import fetched_base
from millrace.models.language.corpus.sequences import Packed
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer
from millrace.models.language.held_out import HELD_OUT_TOKENS, spread_over
from millrace.models.language.recipe import DecoderSpec, Lora, Recipe
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks import progress
from millrace.tasks.kinds.language.draft_model import require_draft
from millrace.tasks.kinds.steps import Prepared
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.models.config.dataset_spec import Split
    from millrace.models.language.corpus.ngram import Baselines
    from millrace.models.language.corpus.sequences import StoredSequences
    from millrace.models.language.corpus.token_table import TokenTable
    from millrace.models.language.decoder_loop import LanguageJob

BASE_TAG = "millrace.base"
BASE_REVISION_TAG = "millrace.base_revision"


@dataclass(frozen=True)
class DecoderTraining:
    """The parts of a training that only a language model has.

    Attributes:
        tokens: the token table that the model is trained on.
        baselines: the perplexities on the test split of a unigram model, a trigram model, and the
            base before training.
    """

    tokens: "TokenTable"
    baselines: "Baselines"


def prepare_decoder(
    pipeline: Pipeline, installation: Installation, snapshot: Snapshot, run: TrackedRun
) -> Prepared[DecoderTraining]:
    """Fetch the base model, make the token table, and measure the baselines.

    Raises:
        InputError: the base or the draft model does not exist, or does not fit.
        TransientError: MLflow or its artifact store does not answer.
    """
    from millrace.models.language.decoder_loop import EXPORTED, LanguageJob
    from millrace.models.training.workers import choose_workers

    based = fetch_base(pipeline, installation)
    tokens = make_tokens(based, installation, snapshot)
    tokenizer = tokens.tokenizer()
    require_draft(pipeline, registry_of(installation), tokenizer.files["tokenizer.json"])
    files = installation.home / "training" / f"{run.run_id}-tokenizer"
    tokenizer.write(files)
    job = LanguageJob(
        decoder=decoder_of(based, tokenizer),
        recipe=recipe_of(choose_workers(pipeline.training)),
        train=sequences_of(tokens, "train", installation),
        validation=sequences_of(tokens, "validation", installation),
        tokenizer=files,
    )
    baselines = _to_beat(job, sequences_of(tokens, "test", installation))
    return Prepared(
        job,
        DecoderTraining(tokens, baselines),
        total=None,
        summary=f"{pipeline.training.parallel}, {tokens.splits['train'].tokens:,} tokens",
        weights=EXPORTED,
        artifact=ARTIFACT,
    )


def fetch_base(pipeline: Pipeline, installation: Installation) -> Pipeline:
    """Fetch the base model if it is a registered version.

    Args:
        pipeline: the pipeline, with its model pinned.
        installation: the installation with the registry.

    Returns:
        The pipeline with the fetched folder as its base. If the base is not a registered version,
        the pipeline is unchanged.

    Raises:
        InputError: the base's run no longer has the checkpoint, or the checkpoint has another
            digest.
        TransientError: MLflow or its artifact store does not answer.
    """
    found = fetched_base(pipeline.model, registry_of(installation))
    if found == pipeline.model:
        return pipeline
    revision = str(pipeline.model.revision)
    log.info("base: %s, sha256 %s…", pipeline.model.pretrained, revision[:16])
    return pipeline.with_model(found)


def base_tags(model: ModelSpec) -> dict[str, str]:
    """Return the tags that name the base model; empty for a model trained from scratch.

    Args:
        model: the pinned model. Its revision is a commit on the hub, or the digest of a registered
            version's checkpoint.
    """
    tags = {BASE_TAG: model.pretrained, BASE_REVISION_TAG: model.revision}
    return {name: value for name, value in tags.items() if value is not None}


def make_tokens(pipeline: Pipeline, installation: Installation, snapshot: Snapshot) -> "TokenTable":
    """Make the token table of a snapshot, or find the existing one."""
    from millrace.models.language.corpus.token_table import make_token_table

    shares, folder = pipeline.dataset.split, pipeline.folder
    with progress.bar("tokens", snapshot.rows, "documents") as bar:
        made = make_token_table(snapshot, shares, pipeline.model, folder, installation, bar.update)
    state = "new" if made.created else "unchanged"
    counts = ", ".join(f"{split} {each.tokens:,}" for split, each in made.splits.items())
    log.info("tokens version %s (%s): %s", made.version, state, counts)
    return made


def _to_beat(job: "LanguageJob", test: "StoredSequences") -> "Baselines":
    """Return the perplexities of a unigram, a trigram and the base model on the test split.

    The base model, if there is one, is measured before it is trained.
    """
    from millrace.models.language.corpus.ngram import baselines
    from millrace.models.language.held_out import base_perplexity
    from millrace.tasks.kinds.language.language_train import yield_measured_pieces

    found = baselines(job.train, test, job.decoder.vocab_size)
    perplexities = (
        f"{found.unigram:,.1f} of a unigram model, {found.trigram:,.1f} of a trigram model"
    )
    if job.decoder.pretrained is not None:
        measured = partial(yield_measured_pieces, test, job.decoder.context)
        found = replace(found, base=base_perplexity(job.decoder, measured))
        perplexities += f", {found.base:,.2f} of the base before training"
    log.info("baselines on the test split: perplexity %s", perplexities)
    return found


def sequences_of(
    tokens: "TokenTable", split: "Split", installation: Installation
) -> "StoredSequences":
    """Return the sequences of a split, from a local copy."""
    from millrace.models.language.corpus.sequences import StoredSequences

    return StoredSequences.of(tokens, split, installation.home / "cache" / "sequences")


def describe_steps(metrics: Mapping[str, Any]) -> str:
    """Return loss, validation perplexity and throughput as text."""
    shown = [f"loss {metrics['loss']:.3f}"]
    if "perplexity" in metrics:
        shown.append(f"validation perplexity {metrics['perplexity']:.1f}")
    return "  ".join([*shown, f"{metrics['tokens_per_second']:,.0f} tokens/s"])


def decoder_of(pipeline: Pipeline, tokenizer: LanguageTokenizer) -> DecoderSpec:
    """Return the specification of the decoder to train.

    Raises:
        InputError: the folder in model.pretrained does not exist.
    """
    model = pipeline.model
    return DecoderSpec(
        vocab_size=tokenizer.vocab_size,
        context=model.tokenizer.max_tokens,
        params=model.params,
        pretrained=_resolve(model.pretrained, pipeline.folder),
        revision=model.revision,
        lora=_lora(model.lora),
        eos_token_id=tokenizer.end,
        pad_token_id=tokenizer.padding,
        turn_end_ids=tokenizer.turn_ends,
    )


def recipe_of(spec: TrainingSpec) -> Recipe:
    """Return the recipe of the training.

    Raises:
        InputError: the precision is not supported for decoders.
    """
    if spec.precision == "fp16":
        raise InputError(
            "the family causal_lm cannot be trained in fp16",
            seen="training.precision: fp16",
            valid="auto, bf16, fp32",
            hint="use bf16, which has the range of fp32 and needs no loss scaling",
        )
    return Recipe(
        epochs=spec.epochs,
        max_steps=spec.max_steps,
        batch_size=spec.batch_rows,
        gradient_accumulation_steps=spec.gradient_accumulation_steps,
        gradient_checkpointing=spec.gradient_checkpointing,
        learning_rate=spec.peak_rate,
        optimizer=spec.optimizer,
        weight_decay=spec.weight_decay,
        warmup_ratio=spec.warmup_ratio,
        max_grad_norm=spec.max_grad_norm,
        parallel=spec.parallel,
        precision=spec.precision,
        checkpoint_steps=spec.checkpoint_steps,
        log_steps=spec.log_steps,
        num_workers=spec.workers,
        seed=spec.seed,
        max_failures=spec.max_failures,
    )


def _lora(spec: LoraSpec | None) -> Lora | None:
    if spec is None:
        return None
    targets = None if isinstance(spec.target_modules, str) else spec.target_modules
    return Lora(spec.r, spec.lora_alpha, spec.lora_dropout, targets)


def _resolve(pretrained: str | None, folder: Path) -> str | None:
    return None if pretrained is None else resolve_pretrained(pretrained, folder)


def select_pieces(sequences: "StoredSequences", tokens: int) -> TokenPieces:
    """Return about `tokens` tokens as documents, from evenly spaced sequences."""
    ids, lengths, answers = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, bool)]
    for position in spread_over(sequences, tokens):
        some, of_pieces, answer = sequences.sequence(int(position))
        ids.append(np.asarray(some, np.int64))
        lengths.append(np.asarray(of_pieces, np.int64))
        counted = np.ones(len(some), bool) if answer is None else np.asarray(answer, bool)
        answers.append(counted)
    return TokenPieces(np.concatenate(ids), np.concatenate(lengths), np.concatenate(answers))


def yield_measured_pieces(
    test: "StoredSequences", context: int, vocab_size: int
) -> Iterator[Packed]:
    """Yield the held-out texts that variants are measured on, each as its own sequence.

    Args:
        test: the sequences of the test split.
        context: the context length of the model, in tokens.
        vocab_size: the vocabulary size of the model.
    """
    held_out = select_pieces(test, HELD_OUT_TOKENS)
    for ids, counted in MeasuredText().of(held_out, vocab_size, context).pieces():
        yield ids, [len(ids)], np.concatenate([[False], counted])
