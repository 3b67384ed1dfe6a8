"""Step: from a snapshot to the tokens of its documents, and to a trained decoder."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.base_checkpoint import ARTIFACT
from millrace.models.registry.tracking import TrackedRun
from millrace.models.training.progress import WorkersFailed
from millrace.tasks import progress
from millrace.tasks.kinds.language.decoder import decoder_of, recipe_of
from millrace.tasks.progress import log, recovery
from millrace.tasks.reports.metrics_log import MetricsLog
from millrace.tasks.retry import step
from millrace.tasks.tracking_outage import await_mlflow

if TYPE_CHECKING:
    from millrace.models.config.dataset_spec import Split
    from millrace.models.language.corpus.ngram import Baselines
    from millrace.models.language.corpus.stored_sequences import StoredSequences
    from millrace.models.language.corpus.token_table import TokenTable
    from millrace.models.language.decoder_loop import LanguageJob
    from millrace.models.language.run_events import RunEvent


@dataclass(frozen=True)
class TrainedDecoder:
    """What training left.

    Attributes:
        tokens: the token table that was learnt from.
        checkpoint: folder as transformers writes it, tokenizer included.
        history: metrics of every report.
        recoveries: the steps that were done at each recovery from a failure.
        baselines: what a unigram and a trigram model, and the base before training, reach on the
            test split.
    """

    tokens: "TokenTable"
    checkpoint: Path
    history: tuple[dict[str, Any], ...]
    recoveries: tuple[int, ...]
    baselines: "Baselines"


@step(timeout_seconds=24 * 3600)
def tokenize_documents(
    pipeline: Pipeline, places: Installation, snapshot: Snapshot
) -> "TokenTable":
    """Make the token table of a snapshot, or find the one there is."""
    from millrace.models.language.corpus.token_table import make_token_table

    shares, folder = pipeline.dataset.split, pipeline.folder
    with progress.bar("tokens", snapshot.rows, "documents") as bar:
        made = make_token_table(snapshot, shares, pipeline.model, folder, places, bar.update)
    state = "new" if made.created else "unchanged"
    told = ", ".join(f"{split} {counts.tokens:,}" for split, counts in made.splits.items())
    log.info("tokens version %s (%s): %s", made.version, state, told)
    return made


@step(timeout_seconds=7 * 24 * 3600, retries=0)
def train_decoder(
    pipeline: Pipeline, places: Installation, tokens: "TokenTable", run: TrackedRun
) -> TrainedDecoder:
    """Train on Ray and log every report to the run while it happens."""
    from millrace.models.language.decoder_loop import LanguageJob
    from millrace.models.language.decoder_trainer import fit_language

    tokenizer, storage = tokens.tokenizer(), places.home / "training"
    files = storage / f"{run.run_id}-tokenizer"
    tokenizer.write(files)
    job = LanguageJob(
        decoder=decoder_of(pipeline, tokenizer),
        recipe=recipe_of(pipeline.training),
        train=sequences_of(tokens, "train", places),
        validation=sequences_of(tokens, "validation", places),
        tokenizer=files,
    )
    found = _to_beat(job, sequences_of(tokens, "test", places))
    log.info(
        "train: starting %s workers on Ray (%s), %s tokens",
        *(pipeline.training.num_workers, pipeline.training.parallel),
        f"{tokens.splits['train'].tokens:,}",
    )
    with progress.bar("train", None, "steps") as bar:
        result = fit_language(job, storage, run.run_id, Teller(run, bar))
    await_mlflow(run.tracking_uri)
    if result.recoveries:
        told = "; ".join(recovery(at, "step") for at in result.recoveries)
        run.set_tags({"millrace.recoveries": told})
    # At once: what the export may take is not known, and training took longer.
    run.log_file(result.checkpoint, ARTIFACT)
    return TrainedDecoder(tokens, result.checkpoint, result.history, result.recoveries, found)


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


def sequences_of(tokens: "TokenTable", split: "Split", places: Installation) -> "StoredSequences":
    """Return the sequences of a split, from a copy on this machine."""
    from millrace.models.language.corpus.stored_sequences import StoredSequences

    return StoredSequences.of(tokens, split, places.home / "cache" / "sequences")


class Teller:
    """Tells MLflow and the user what happens in training."""

    def __init__(self, run: TrackedRun, bar: progress.Bar) -> None:
        self.bar = bar
        self._metrics = MetricsLog(run, "step")

    def __call__(self, event: "RunEvent") -> None:
        """Log a report, or say which workers failed and where training went on."""
        from millrace.models.language.run_events import StepsDone

        if isinstance(event, WorkersFailed):
            for rank, cause in event.causes.items():
                log.warning("worker %s failed: %s", rank, cause)
        elif isinstance(event, StepsDone):
            self._report(dict(event.metrics))
        else:
            log.warning("%s", recovery(event.step, "step"))

    def _report(self, metrics: dict[str, Any]) -> None:
        at = int(metrics.pop("step"))
        self.bar.update(at, _note(metrics))
        self._metrics.send(at, {name: float(value) for name, value in metrics.items()})


def _note(metrics: dict[str, Any]) -> str:
    shown = [f"loss {metrics['loss']:.3f}"]
    if "perplexity" in metrics:
        shown.append(f"validation perplexity {metrics['perplexity']:.1f}")
    return "  ".join([*shown, f"{metrics['tokens_per_second']:,.0f} tokens/s"])
