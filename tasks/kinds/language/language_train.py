"""What the training of a decoder starts from: its base, its tokens, and what it has to beat."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.base_checkpoint import ARTIFACT
from millrace.models.language.base_version import fetched_base
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks import progress
from millrace.tasks.kinds.language.decoder import decoder_of, recipe_of
from millrace.tasks.kinds.language.draft_model import require_draft
from millrace.tasks.kinds.steps import Prepared
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from millrace.models.config.dataset_spec import Split
    from millrace.models.language.corpus.ngram import Baselines
    from millrace.models.language.corpus.stored_sequences import StoredSequences
    from millrace.models.language.corpus.token_table import TokenTable
    from millrace.models.language.decoder_loop import LanguageJob

BASE_TAG = "millrace.base"
BASE_REVISION_TAG = "millrace.base_revision"


@dataclass(frozen=True)
class DecoderTraining:
    """What only a language model knows of its training.

    Attributes:
        tokens: the token table that was learnt from.
        baselines: what a unigram and a trigram model, and the base before training, reach on the
            test split.
    """

    tokens: "TokenTable"
    baselines: "Baselines"


def prepare_decoder(
    pipeline: Pipeline, installation: Installation, snapshot: Snapshot, run: TrackedRun
) -> Prepared[DecoderTraining]:
    """Fetch the base, make the tokens, and measure what the decoder has to beat.

    Raises:
        InputError: the base or the draft is not there, or does not fit.
        TransientError: MLflow or its artifact store does not answer.
    """
    from millrace.models.language.decoder_loop import EXPORTED, LanguageJob

    based = fetch_base(pipeline, installation)
    tokens = make_tokens(based, installation, snapshot)
    tokenizer = tokens.tokenizer()
    require_draft(pipeline, registry_of(installation), tokenizer.files["tokenizer.json"])
    files = installation.home / "training" / f"{run.run_id}-tokenizer"
    tokenizer.write(files)
    job = LanguageJob(
        decoder=decoder_of(based, tokenizer),
        recipe=recipe_of(pipeline.training),
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
    """Return the pipeline with its base as a folder, where that is a registered version.

    Args:
        pipeline: its model pinned.
        installation: where the registry is.

    Raises:
        InputError: the version's run keeps no checkpoint any more, or another one.
        TransientError: MLflow or its artifact store does not answer.
    """
    found = fetched_base(pipeline.model, registry_of(installation))
    if found == pipeline.model:
        return pipeline
    revision = str(pipeline.model.revision)
    log.info("base: %s, sha256 %s…", pipeline.model.pretrained, revision[:16])
    return pipeline.with_model(found)


def base_tags(model: ModelSpec) -> dict[str, str]:
    """Return the tags that tell what a model was trained from; none if from scratch.

    Args:
        model: pinned: of the hub its revision is a commit, of a registered version the digest of
            its checkpoint.
    """
    tags = {BASE_TAG: model.pretrained, BASE_REVISION_TAG: model.revision}
    return {name: value for name, value in tags.items() if value is not None}


def make_tokens(pipeline: Pipeline, installation: Installation, snapshot: Snapshot) -> "TokenTable":
    """Make the token table of a snapshot, or find the one there is."""
    from millrace.models.language.corpus.token_table import make_token_table

    shares, folder = pipeline.dataset.split, pipeline.folder
    with progress.bar("tokens", snapshot.rows, "documents") as bar:
        made = make_token_table(snapshot, shares, pipeline.model, folder, installation, bar.update)
    state = "new" if made.created else "unchanged"
    counts = ", ".join(f"{split} {each.tokens:,}" for split, each in made.splits.items())
    log.info("tokens version %s (%s): %s", made.version, state, counts)
    return made


def _to_beat(job: "LanguageJob", test: "StoredSequences") -> "Baselines":
    """Return what simpler models reach on the test split, and the base before it is trained."""
    from millrace.models.language.corpus.ngram import baselines
    from millrace.models.language.held_out import base_perplexity
    from millrace.tasks.kinds.language.held_out import measured_alone

    found = baselines(job.train, test, job.decoder.vocab_size)
    told = f"{found.unigram:,.1f} of a unigram model, {found.trigram:,.1f} of a trigram model"
    if job.decoder.pretrained is not None:
        measured = partial(measured_alone, test, job.decoder.context)
        found = replace(found, base=base_perplexity(job.decoder, measured))
        told += f", {found.base:,.2f} of the base before training"
    log.info("to beat on the test split: perplexity %s", told)
    return found


def sequences_of(
    tokens: "TokenTable", split: "Split", installation: Installation
) -> "StoredSequences":
    """Return the sequences of a split, from a copy on this machine."""
    from millrace.models.language.corpus.stored_sequences import StoredSequences

    return StoredSequences.of(tokens, split, installation.home / "cache" / "sequences")


def describe_steps(metrics: Mapping[str, Any]) -> str:
    """Return loss, validation perplexity and throughput."""
    shown = [f"loss {metrics['loss']:.3f}"]
    if "perplexity" in metrics:
        shown.append(f"validation perplexity {metrics['perplexity']:.1f}")
    return "  ".join([*shown, f"{metrics['tokens_per_second']:,.0f} tokens/s"])
