"""What the rows of a batch job are held against: the snapshot that its model learnt from.

Of columns the snapshot has statistics. How many tokens its texts have depends on the model that
reads them, and what is predicted is not what the target was: a regression's answers spread less. So
tokens are counted, and predictions made, for a sample of the snapshot's rows.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import Snapshot, open_snapshot, sample_rows
from millrace.models.language.corpus.documents import kind_of
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.batch.input.input_pieces import cells_of
from millrace.serving.batch.job import ERROR, ROW, TOKENS_IN, TOKENS_OUT
from millrace.serving.batch.monitoring.drift import Bins, bins_of_values
from millrace.serving.batch.prompts.prompt_rows import Prompts, context_of, is_readable
from millrace.serving.batch.row_job import TOKENS, RowJob
from millrace.tasks.batch.choose_job import AnyJob
from millrace.tasks.progress import log

PREDICTION = "prediction"
ROWS = 1024
"""Of a snapshot whose texts are counted, or whose rows are answered."""


def learnt_from(version: ModelVersion, places: Installation) -> Snapshot | None:
    """Return the snapshot that a version was trained on; None where it is not there any more."""
    name, _, number = version.tags.get("millrace.dataset", "").partition(" version ")
    if not number.isdigit():
        return None
    try:
        return open_snapshot(places, name, int(number))
    except InputError:
        return None


def watched(job: AnyJob, snapshot: Snapshot | None) -> AnyJob:
    """Return the same job, told what its rows and answers are held against.

    Args:
        job: of a version.
        snapshot: that the version learnt from; None where it is not there any more.
    """
    if snapshot is None:
        return job
    if isinstance(job, RowJob):
        features, target = bins_of(snapshot)
        bins = (*features, *_unless_gone(partial(text_bins, job), snapshot))
        answers = _unless_gone(partial(answer_bins, job), snapshot)
        return replace(job, bins=bins, output_bins=answers or target)
    return replace(job, output_bins=_unless_gone(partial(prompt_bins, job), snapshot))


def _unless_gone(
    counted: Callable[[Snapshot], tuple[Bins, ...]], snapshot: Snapshot
) -> tuple[Bins, ...]:
    """Return bins of a sample of the rows; none where it cannot be read."""
    try:
        return counted(snapshot)
    except OSError as error:  # such as of files that somebody has vacuumed away
        told = "drift of lengths is not looked at, for %s cannot be read: %s"
        log.warning(told, snapshot.uri, error)
        return ()


def bins_of(snapshot: Snapshot) -> tuple[tuple[Bins, ...], tuple[Bins, ...]]:
    """Return the bins of the features that can be compared, and of the target if it can be."""
    schema, known = snapshot.schema, snapshot.statistics
    found = {c.name: Bins.of(c, known[c.name]) for c in schema.columns if c.name in known}
    features = tuple(bins for name in schema.features if (bins := found.get(name)) is not None)
    target = found.get(schema.target)
    return features, () if target is None else (replace(target, column=PREDICTION),)


def answer_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of what the model predicts for the rows of the snapshot.

    Returns:
        Nothing for a model of texts, which are slow to answer, and where it can answer no row of
        the sample: predictions are then compared with the target.
    """
    if job.encoding.tokenizer is not None:
        return ()
    rows = sample_rows(snapshot, job.needed, ROWS)
    encoded = job.encoded(rows)
    good = encoded.filter(pc.is_null(encoded[ERROR])).drop_columns([ERROR])
    if not good.num_rows:
        return ()
    places = pa.array(range(good.num_rows), pa.int64())
    answers = job.worker()(good.append_column(ROW, places)).rows[PREDICTION]
    codes = bool(job.encoding.labels)
    return (bins_of_values(PREDICTION, answers.combine_chunks(), codes=codes),)


def text_bins(job: RowJob, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the lengths of texts in tokens, as the model reads them.

    Returns:
        None for a model that reads no text.
    """
    if job.encoding.tokenizer is None:
        return ()
    rows = sample_rows(snapshot, job.needed, ROWS)
    lengths = cells_of(job.compared(rows, job.encoded(rows)), TOKENS)
    return (bins_of_values(TOKENS, lengths),)


def prompt_bins(job: Prompts, snapshot: Snapshot) -> tuple[Bins, ...]:
    """Return the bins of the lengths in tokens of instructions and of their answers.

    An answer of the job has no more than `max_tokens`, so no more are counted of one that was
    learnt from.

    Returns:
        None for a model of a corpus or of chats, in which nothing is what a job's prompts are.
    """
    schema = snapshot.schema
    if kind_of(schema) != "instructions":
        return ()
    asked, answered = schema.features[0], schema.target
    rows = sample_rows(snapshot, (asked, answered), ROWS)
    prompts = _lengths(job, rows[asked], special=True)
    # The token that ends an answer is one of it.
    answers = pc.min_element_wise(
        pc.add(_lengths(job, rows[answered], special=False), 1), job.sampling.max_tokens
    )
    return bins_of_values(TOKENS_IN, prompts), bins_of_values(TOKENS_OUT, answers)


def _lengths(job: Prompts, texts: pa.ChunkedArray, *, special: bool) -> pa.Array:
    """Return how many tokens texts have, int64; those that the job would not read are left out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(job.form / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    context = context_of(job.form)
    read = [text for text in texts.to_pylist() if text and is_readable(text, context)]
    found = tokenizer.encode_batch_fast(read, add_special_tokens=special)
    return pa.array([len(encoding.ids) for encoding in found], pa.int64())
