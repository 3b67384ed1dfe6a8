"""Two language models by one perplexity, also where their tokens are not the same."""

import math
from collections.abc import Iterator

from millrace.export.language.text_loss import TextLoss, text_loss
from millrace.export.openvino.decoder_config import number_of
from millrace.models.common.installation import Places
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.messages import parsed
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.registry.version_files import LanguagePackage
from millrace.tasks.kept import language_certificate_of, pipeline_of

SAME = ("millrace.dataset_digest", "millrace.tokenizer_digest")
CHARACTERS = 200_000
"""Of the test split, on which two models are compared whose tokens are not the same."""


def certified_perplexity(package: LanguagePackage) -> float | None:
    """Return the perplexity of the form that was registered; None if it was not measured."""
    certificate = language_certificate_of(package)
    form = certificate.form(certificate.candidate)
    return form.stage.perplexity if form and form.stage else None


def perplexity_beside(one: LanguagePackage, other: LanguagePackage, places: Places) -> float | None:
    """Return the other's perplexity on the test split of the one, by token of the one.

    The same text and the same tokens: as it was certified. Else both are asked for the likelihood
    of the same text, and the ratio of the two, by token of the one, is what its certified
    perplexity is multiplied by.

    Raises:
        MillraceError: the text cannot be read, or a model cannot be asked.
    """
    if all(one.version.tags.get(tag) == other.version.tags.get(tag) for tag in SAME):
        return certified_perplexity(other)
    mine = certified_perplexity(one)
    certificate, pipeline = language_certificate_of(one), pipeline_of(one)
    snapshot = open_snapshot(places, certificate.dataset, certificate.dataset_version)
    texts = list(_texts(snapshot, pipeline))
    losses = [_asked(each, texts, places) for each in (one, other)]
    return None if mine is None or not losses[0].tokens else beside(mine, *losses)


def beside(perplexity: float, mine: TextLoss, other: TextLoss) -> float:
    """Return the other's perplexity by my tokens, from mine and the losses on one text."""
    return perplexity * math.exp((other.loss - mine.loss) / mine.tokens)


def _asked(package: LanguagePackage, texts: list[str], places: Places) -> TextLoss:
    folder = next(iter(package.files.values())).parent
    context = number_of(folder, "max_position_embeddings")
    limits = pipeline_of(package).export.limits.of_process
    return text_loss(folder, texts, context, limits, places.vllm_python)


def _texts(snapshot: Snapshot, pipeline: Pipeline) -> Iterator[str]:
    """Yield texts of the test split; of a chat what was said, of an instruction the answer."""
    target, left = snapshot.schema.target, CHARACTERS
    chat = snapshot.schema.column(target).type == "messages"
    for rows in scan(snapshot, "test", pipeline.dataset.split, columns=(target,)):
        for value in rows[target].to_pylist():
            text = "\n".join(turn["content"] for turn in parsed(value)) if chat else str(value)
            yield text[:left]
            if (left := left - len(text)) <= 0:
                return
