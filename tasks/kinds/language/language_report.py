"""What a language model's run came to, for MLflow and Prefect: tables, pictures, one page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect.artifacts import create_markdown_artifact

from millrace.export.select import pareto
from millrace.tasks.kinds.language.fetch_base import BASE_TAG
from millrace.tasks.progress import log
from millrace.tasks.reports.run_report import key_of, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from millrace.export.language_candidate import LanguageCandidate
    from millrace.export.language_certificate import LanguageCertificate
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.language.corpus.ngram import Baselines
    from millrace.models.language.decoder_plots import FormPoint
    from millrace.models.registry.gates import Promotion
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import ModelVersion
    from millrace.tasks.kinds.language.language_export import ExportedForms
    from millrace.tasks.kinds.language.language_train import TrainedDecoder
import base64
from collections.abc import Mapping
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: #f4f4f4; }
pre { background: #f8f8f8; margin: 0; padding: .5rem; white-space: pre-wrap; }
img { max-width: 100%; }
"""


def html_page(title: str, markdown: str, pictures: Mapping[str, "Figure"]) -> str:
    """Return a page that needs no other file.

    Args:
        title: of the page.
        markdown: its text; HTML in it is shown and not obeyed.
        pictures: by their captions, in order, after the text.
    """
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    shown = "".join(
        f'<h2>{escape(caption)}</h2><img alt="{escape(caption)}" src="{_inline(figure)}">'
        for caption, figure in pictures.items()
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{body}{shown}</body></html>"


def _inline(figure: "Figure") -> str:
    png = BytesIO()
    figure.savefig(png, format="png", dpi=110)
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


HEAD = (
    *("form", "size", "perplexity", "increase", "mean KL", "top-1 agreement"),
    *("first token", "a token", "tokens/s at 1", "at 8", "at 32", "verdict"),
)


BEFORE = "base, before training"


def publish_language(
    snapshot: "Snapshot",
    trained: "TrainedDecoder",
    exported: "ExportedForms",
    version: "ModelVersion",
    promotion: "Promotion",
    run: "TrackedRun",
) -> None:
    """Publish what a run came to: as a Prefect artifact, and with its pictures as a page in MLflow.

    Of the work this is the last and the least: an MLflow that does not take it is told of.
    """
    from mlflow.exceptions import MlflowException

    text = report(snapshot, trained, exported, version, promotion)
    key = key_of(version.model, "training")
    create_markdown_artifact(text, key=key, description="training run")
    title = f"{version.model} version {version.version}"
    try:
        run.log_text(html_page(title, text, pictures_of(trained, exported)), "report.html")
    except (MlflowException, OSError) as error:
        log.warning("MLflow has no page of this run: %s", str(error).splitlines()[0])


def pictures_of(trained: "TrainedDecoder", exported: "ExportedForms") -> dict[str, "Figure"]:
    """Return the pictures of a run, by their captions."""
    from millrace.models.language.decoder_plots import forms_picture, loss_curve

    pictures = {"Learning curve": loss_curve(trained.history, trained.baselines)}
    if points := form_points(exported):
        pictures["Forms"] = forms_picture(points)
    return pictures


def form_points(exported: "ExportedForms") -> "list[FormPoint]":
    """Return the forms that were measured, as points."""
    from millrace.models.language.decoder_plots import FormPoint

    return [
        FormPoint(
            name=each.name,
            perplexity=each.stage.perplexity,
            size_mib=each.size_bytes / 2**20,
            tokens_per_second=dict(each.speed.tokens_per_second),
            refused=not each.passed,
            chosen=each.name == exported.certificate.candidate,
        )
        for each in exported.candidates
        if each.stage is not None and each.speed is not None
    ]


def report(
    snapshot: "Snapshot",
    trained: "TrainedDecoder",
    exported: "ExportedForms",
    version: "ModelVersion",
    promotion: "Promotion",
) -> str:
    """Return the page of a run, as Markdown."""
    tokens = trained.tokens.splits
    facts = [
        ("snapshot", f"version {snapshot.version}, {snapshot.rows:,} documents"),
        *((f"{split} tokens", f"{counts.tokens:,}") for split, counts in tokens.items()),
        ("model", f"{version.model} version {version.version}"),
        ("digest", f"`{version.digest[:16]}…`"),
        *(("base", f"`{version.tags[tag]}`") for tag in (BASE_TAG,) if tag in version.tags),
        ("champion", f"{'yes' if promotion.champion else 'no'}: {promotion.reason}"),
    ]
    return "\n\n".join(
        [
            f"# {version.model}",
            table(("", ""), facts),
            "## Perplexity on the test split",
            baselines_table(trained.baselines, exported.certificate),
            "## Forms",
            forms_table(exported.candidates, exported.certificate),
            "## What it writes",
            samples(exported),
        ]
    )


def baselines_table(baselines: "Baselines", certificate: "LanguageCertificate") -> str:
    """Return the perplexities of simpler models and the base beside the trained one's."""
    rows = [
        ("unigram", f"{baselines.unigram:,.1f}"),
        ("trigram, Kneser-Ney", f"{baselines.trigram:,.1f}"),
        *([] if baselines.base is None else [(BEFORE, f"{baselines.base:,.2f}")]),
        *((stage.name, f"{stage.perplexity:,.2f}") for stage in certificate.stages),
    ]
    return table(("model", "perplexity"), rows)


def forms_table(
    candidates: "Sequence[LanguageCandidate]", certificate: "LanguageCertificate"
) -> str:
    """Return every form as a Markdown table; those on the Pareto front have a star."""
    front = {each.name for each in pareto(candidates)}
    rows = [form_row(each, certificate, each.name in front) for each in candidates]
    star = "★ no other form is better in perplexity, latency, tokens/s and size at once."
    return "\n\n".join((table(HEAD, rows), f"Measured on {certificate.machine}. {star}"))


def form_row(
    candidate: "LanguageCandidate", certificate: "LanguageCertificate", in_front: bool = False
) -> tuple[str, ...]:
    """Return what was measured of a form, and its verdict, for people."""
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


def samples(exported: "ExportedForms", most: int = 3) -> str:
    """Return how each form goes on with some prompts, side by side, as a Markdown table."""
    prompts = exported.golden.prompts[:most]
    rows = [
        (f"`{name}`", *(code(golden.answers[number]) for number in range(len(prompts))))
        for name, golden in exported.written.items()
    ]
    return table(("form", *(code(prompt) for prompt in prompts)), rows)


def code(text: str) -> str:
    """Return a text as code in a cell of a Markdown table: in one line, ⏎ for a new one."""
    line = "⏎ ".join(text.splitlines()) or " "
    return f"`` {line.replace('|', '¦').replace('``', 'ˋˋ')} ``"
