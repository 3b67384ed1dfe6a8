"""The report on a language model's training run: metrics, tables, pictures and samples."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.export.language.language_certificate import LanguageCandidate, LanguageCertificate
from millrace.export.language.language_exporter import language_gates
from millrace.export.select import MIB, pareto_front
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.base_checkpoint import CHECKPOINT_TAG, checkpoint_digest
from millrace.tasks.kinds.language.language_export import LanguageExport
from millrace.tasks.kinds.language.language_plots import (
    PerplexityPoint,
    loss_curve,
    perplexity_picture,
)
from millrace.tasks.kinds.language.language_train import BASE_TAG, DecoderTraining, base_tags
from millrace.tasks.kinds.steps import Exported, KindReport, Row, Trained
from millrace.tasks.reports.drawing import Draw
from millrace.tasks.reports.markdown import table

if TYPE_CHECKING:
    from millrace.models.language.corpus.ngram import Baselines

HEAD = (
    *("variant", "size", "perplexity", "increase", "mean KL", "top-1 agreement"),
    *("first token", "a token", "tokens/s at 1", "at 8", "at 32", "verdict"),
)


BEFORE = "base, before training"


def report_language(
    pipeline: Pipeline,
    snapshot: Snapshot,
    trained: Trained[DecoderTraining],
    exported: Exported,
) -> KindReport:
    """Return the report on a training run."""
    certificate: LanguageCertificate = exported.certificate
    details, tags = trained.details, _tags(pipeline, trained, exported)
    baselines = baselines_table(details.baselines, certificate)
    variants = variants_table(exported.candidates, certificate)
    written = samples(exported.export, exported.chosen)
    counts = {split: f"{each.tokens:,}" for split, each in details.tokens.splits.items()}
    return KindReport(
        metrics=dict(_metrics(exported.candidates, details.baselines, certificate.candidate)),
        texts={
            "golden.json": exported.export.golden(exported.chosen).to_json(),
            "export/forms.md": variants,
            "samples.md": written,
        },
        tags=tags,
        description="\n\n".join((describe_chosen(certificate), baselines, variants)),
        facts=(
            *((f"{split} tokens", count) for split, count in counts.items()),
            *(("base", f"`{tags[tag]}`") for tag in (BASE_TAG,) if tag in tags),
        ),
        sections=(
            ("Perplexity on the test split", baselines),
            ("Variants", variants),
            ("What it writes", written),
        ),
        rows=tuple(_rows(details, exported.candidates, certificate, tags)),
        json={
            "tokens": {
                "version": details.tokens.version,
                "fingerprint": details.tokens.fingerprint,
                "splits": details.tokens.splits,
            },
            "baselines": details.baselines,
        },
    )


def _tags(
    pipeline: Pipeline, trained: Trained[DecoderTraining], exported: Exported
) -> dict[str, str]:
    stage: Any = exported.chosen.stage
    draft = pipeline.serving.generation.draft
    return {
        "millrace.perplexity": f"{stage.perplexity:.4f}",
        "millrace.perplexity_increase": f"{stage.perplexity_increase:.4%}",
        "millrace.tokenizer_digest": trained.details.tokens.tokenizer_digest,
        CHECKPOINT_TAG: checkpoint_digest(trained.weights),
        **base_tags(pipeline.model),
        **({} if draft is None else {"millrace.draft": draft}),
    }


def _metrics(
    candidates: Sequence[LanguageCandidate], baselines: "Baselines", chosen: str
) -> Iterator[tuple[str, float]]:
    for each in candidates:
        stage, speed = each.stage, each.speed
        if stage is None or speed is None:
            continue
        values = {
            "perplexity": stage.perplexity,
            "mean_kl": stage.mean_kl,
            "top1_agreement": stage.top1_agreement,
            "size_bytes": each.size_bytes,
            "time_to_first_token_ms": speed.time_to_first_token_ms,
            "ms_per_token": speed.ms_per_token,
            **{f"tokens_per_second_{n}": rate for n, rate in speed.tokens_per_second.items()},
        }
        yield from ((f"variant.{each.name}.{name}", float(v)) for name, v in values.items())
        if each.name == chosen:
            yield "test.perplexity", float(stage.perplexity)
    yield "test.unigram", baselines.unigram
    yield "test.trigram", baselines.trigram
    if baselines.base is not None:
        yield "test.base", baselines.base


def draw_training(trained: Trained[DecoderTraining]) -> dict[str, Draw]:
    """Return what draws the pictures of the training, by artifact path."""
    baselines = trained.details.baselines
    lines = {"unigram": baselines.unigram, "trigram": baselines.trigram}
    lines |= {} if baselines.base is None else {BEFORE: baselines.base}
    return {"plots/learning_curve.png": partial(loss_curve, trained.history, lines)}


def draw_export(
    export: LanguageExport, candidates: Sequence[LanguageCandidate], chosen: LanguageCandidate
) -> dict[str, Draw]:
    """Return what draws the pictures of the export, by artifact path."""
    del export
    points = [
        PerplexityPoint(
            name=each.name,
            perplexity=each.stage.perplexity,
            size_mib=each.size_bytes / MIB,
            tokens_per_second=dict(each.speed.tokens_per_second),
            refused=not each.passed,
            chosen=each.name == chosen.name,
        )
        for each in candidates
        if each.stage is not None and each.speed is not None
    ]
    return {"plots/forms.png": partial(perplexity_picture, points)} if points else {}


def _rows(
    details: DecoderTraining,
    candidates: Sequence[LanguageCandidate],
    certificate: LanguageCertificate,
    tags: dict[str, str],
) -> Iterator[Row]:
    """Yield the rows of the table that is printed."""
    simpler, perplexity = details.baselines, certificate.stages[0].perplexity
    counts = details.tokens.splits.items()
    yield "tokens", ", ".join(f"{split} {each.tokens:,}" for split, each in counts)
    yield (
        "test perplexity",
        f"{perplexity:,.2f} (trigram model {simpler.trigram:,.1f}, "
        f"unigram model {simpler.unigram:,.1f})"
        + ("; no better than the unigram model" if perplexity >= simpler.unigram else ""),
    )
    if simpler.base is not None:
        yield "before training", f"{simpler.base:,.2f}, of {tags.get(BASE_TAG, 'the base')}"
    for each in candidates:
        yield each.name, _in_words(each, certificate)


def _in_words(candidate: LanguageCandidate, certificate: LanguageCertificate) -> str:
    stage, speed = candidate.stage, candidate.speed
    if stage is None or speed is None:
        return candidate.reason or ""
    rates = " / ".join(f"{rate:,.0f}" for rate in speed.tokens_per_second.values())
    streams = " / ".join(map(str, speed.tokens_per_second))
    verdict = "chosen" if certificate.passed else "closest to the limits"
    mark = f"  ← {verdict}" if candidate.name == certificate.candidate else ""
    return (
        f"{candidate.size_bytes / MIB:,.1f} MiB, perplexity {stage.perplexity:,.2f} "
        f"({stage.perplexity_increase:+.2%}), first token {speed.time_to_first_token_ms:.1f} ms, "
        f"{rates} tokens/s at {streams} streams"
        f"{', ' + candidate.reason if candidate.reason else ''}{mark}"
    )


def describe_chosen(certificate: LanguageCertificate) -> str:
    """Return in a sentence what a version is."""
    found = [each for each in certificate.candidates if each.name == certificate.candidate]
    if not found or found[0].stage is None:
        return f"{certificate.candidate}."
    size = f"{found[0].size_bytes / 2**20:,.1f} MiB"
    return f"perplexity {found[0].stage.perplexity:,.2f}: {found[0].name}, {size}."


def baselines_table(baselines: "Baselines", certificate: LanguageCertificate) -> str:
    """Return a table of perplexities: simpler models, the base model, and the trained model."""
    rows = [
        ("unigram", f"{baselines.unigram:,.1f}"),
        ("trigram, Kneser-Ney", f"{baselines.trigram:,.1f}"),
        *([] if baselines.base is None else [(BEFORE, f"{baselines.base:,.2f}")]),
        *((stage.name, f"{stage.perplexity:,.2f}") for stage in certificate.stages),
    ]
    return table(("model", "perplexity"), rows)


def variants_table(
    candidates: Sequence[LanguageCandidate], certificate: LanguageCertificate
) -> str:
    """Return every variant as a Markdown table; variants on the Pareto front have a star."""
    front = pareto_front(candidates, language_gates())
    rows = [variant_row(each, certificate, each.name in front) for each in candidates]
    star = "★ no other variant is better in perplexity, latency, tokens/s and size at once."
    return "\n\n".join((table(HEAD, rows), f"Measured on {certificate.machine}. {star}"))


def variant_row(
    candidate: LanguageCandidate, certificate: LanguageCertificate, in_front: bool = False
) -> tuple[str, ...]:
    """Return a variant's measurements and verdict as the cells of a table row."""
    stage, speed = candidate.stage, candidate.speed
    if stage is None or speed is None:
        return (candidate.name, *[""] * (len(HEAD) - 2), candidate.reason or "")
    verdict = "chosen" if candidate.name == certificate.candidate else "passed"
    return (
        f"{candidate.name}{' ★' if in_front else ''}",
        f"{candidate.size_bytes / 2**20:,.1f} MiB",
        f"{stage.perplexity:,.2f}",
        f"{stage.perplexity_increase:+.2%}",
        f"{stage.mean_kl:.2e}",
        f"{stage.top1_agreement:.2%}",
        f"{speed.time_to_first_token_ms:.1f} ms",
        f"{speed.ms_per_token:.2f} ms",
        *(f"{rate:,.0f}" for rate in speed.tokens_per_second.values()),
        candidate.reason or verdict,
    )


def samples(export: LanguageExport, chosen: LanguageCandidate, most: int = 3) -> str:
    """Return each variant's answers to some prompts as a Markdown table."""
    prompts = export.golden(chosen).prompts[:most]
    rows = [
        (f"`{name}`", *(code(golden.answers[number]) for number in range(len(prompts))))
        for name, golden in export.texts.items()
    ]
    return table(("variant", *(code(prompt) for prompt in prompts)), rows)


def code(text: str) -> str:
    """Return a text as code for a cell of a Markdown table, with ⏎ for line breaks."""
    line = "⏎ ".join(text.splitlines()) or " "
    return f"`` {line.replace('|', '¦').replace('``', 'ˋˋ')} ``"
