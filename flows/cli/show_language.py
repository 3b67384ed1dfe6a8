"""What language models and their clients come to, as tables, for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.flows.console import print_hint, print_piece, print_table
from millrace.tasks.progress import recovery

if TYPE_CHECKING:
    from millrace.export.language_candidate import LanguageCandidate
    from millrace.export.language_certificate import LanguageCertificate
    from millrace.flows.cli.api_keys import KnownKey, NewKey
    from millrace.flows.cli.predict_text import LiveText
    from millrace.flows.train_language import LanguageOutcome
    from millrace.models.registry.gates import Promotion
    from millrace.tasks.kinds.language.language_certify import LiveLanguage

Row = tuple[object, object]
MIB = 2**20


def promotion_rows(promotion: "Promotion") -> list[tuple[object, object]]:
    """Return what a new version would take the place of, and what a release would say of it."""
    rows: list[tuple[object, object]] = []
    if (other := promotion.beside) is not None:
        facts = [other.candidate] if other.candidate else []
        facts += [] if other.size_bytes is None else [f"{other.size_bytes / 1024:,.0f} KiB"]
        measured = "not measurable" if other.metric is None else f"{other.metric:.4f}"
        facts.append(f"{other.metric_name} {measured} on the same test split")
        what = "live" if other.is_live else "champion"
        rows.append((f"{what} now: version {other.version}", ", ".join(facts)))
    return [*rows, ("release", promotion.release)] if promotion.challenger else rows


def language_rows(outcome: "LanguageOutcome") -> list[Row]:
    """Return what there is to tell of a run."""
    from millrace.tasks.kinds.language.fetch_base import BASE_TAG

    snapshot, certificate, simpler = outcome.snapshot, outcome.certificate, outcome.baselines
    state = "new" if snapshot.created else "unchanged"
    tokens = outcome.tokens.splits
    rows: list[Row] = [
        ("snapshot", f"{snapshot.rows:,} documents, version {snapshot.version} ({state})"),
        ("tokens", ", ".join(f"{split} {counts.tokens:,}" for split, counts in tokens.items())),
        (
            "test perplexity",
            f"{certificate.stages[0].perplexity:,.2f} (trigram model {simpler.trigram:,.1f}, "
            f"unigram model {simpler.unigram:,.1f})"
            + ("; it has learnt nothing yet" if learnt_nothing(outcome) else ""),
        ),
    ]
    if simpler.base is not None:
        name = outcome.version.tags.get(BASE_TAG, "the base")
        rows.append(("before training", f"{simpler.base:,.2f}, of {name}"))
    if snapshot.quarantined:
        rows.append(("quarantined", f"{snapshot.quarantined:,} rows: {dict(snapshot.reasons)}"))
    rows += [("workers failed", recovery(at, "step")) for at in outcome.recoveries]
    rows += [(each.name, _form(each, outcome)) for each in outcome.candidates]
    champion = "champion" if outcome.promotion.champion else "not champion"
    version = f"{outcome.version.model} version {outcome.version.version}"
    rows.append(("registered", f"{version}, {champion}: {outcome.promotion.reason}"))
    rows += promotion_rows(outcome.promotion)
    return rows


def learnt_nothing(outcome: "LanguageOutcome") -> bool:
    """Tell whether the model guesses held-out text no better than the tokens' frequencies do."""
    return outcome.certificate.stages[0].perplexity >= outcome.baselines.unigram


def _form(candidate: "LanguageCandidate", outcome: "LanguageOutcome") -> str:
    stage, speed = candidate.stage, candidate.speed
    if stage is None or speed is None:
        return candidate.reason or ""
    rates = " / ".join(f"{rate:,.0f}" for rate in speed.tokens_per_second.values())
    streams = " / ".join(map(str, speed.tokens_per_second))
    of_it = "chosen" if outcome.certificate.passed else "the nearest"
    mark = f"  ← {of_it}" if candidate.name == outcome.certificate.candidate else ""
    return (
        f"{candidate.size_bytes / MIB:,.1f} MiB, perplexity {stage.perplexity:,.2f} "
        f"({stage.perplexity_increase:+.2%}), first token {speed.time_to_first_token_ms:.1f} ms, "
        f"{rates} tokens/s at {streams} streams"
        f"{', ' + candidate.reason if candidate.reason else ''}{mark}"
    )


def show_certified_language(found: "LiveLanguage") -> None:
    """Print the stages of a certificate from transformers to the live server."""
    rows = certified_rows(found.certificate)
    version = f"{found.version.model} version {found.version.version} at {found.endpoint}"
    print_table(version, ("stage", "perplexity", "greedy answers"), rows)


def certified_rows(certificate: "LanguageCertificate") -> list[tuple[str, str, str]]:
    """Return the stages of a certificate: of each its perplexity, and how it answers prompts."""
    rows = [(stage.name, f"{stage.perplexity:,.4f}", "") for stage in certificate.stages]
    form, live = certificate.form(certificate.candidate), certificate.live
    if form and (stage := form.stage):
        told = f"{stage.greedy_equal} of {stage.prompts} as transformers"
        rows.append((f"{form.name}  ← chosen", f"{stage.perplexity:,.4f}", told))
    if live:
        told = f"as certified: {live.as_certified}"
        if live.as_transformers:
            told += f"\nas transformers: {live.as_transformers}"
        rows.append(("triton", f"{live.perplexity:,.4f}" if live.perplexity else "", told))
    return rows


def show_text(answer: "LiveText") -> None:
    """End a text that was printed as it came, and say what it took."""
    print_piece("\n")
    rate = answer.output_tokens / (answer.milliseconds / 1000)
    print_hint(
        f"{answer.input_tokens} tokens in, {answer.output_tokens} out ({answer.finish_reason}); "
        f"first after {answer.first_token_ms:.1f} ms, {rate:,.0f} tokens/s",
        label=f"{answer.model} version {answer.version} at {answer.endpoint}",
    )


def show_new_key(key: "NewKey") -> None:
    """Print the secret of a new key, and how it is used."""
    print_piece(f"{key.secret}\n")
    print_hint(
        f"{key.tokens_per_minute:,} tokens a minute; it is not shown again",
        label=f"key of {key.name}",
    )
    print_hint(f"OPENAI_BASE_URL={key.base_url} OPENAI_API_KEY=… for the openai package")


def show_keys(keys: "Sequence[KnownKey]") -> None:
    """Print the keys that there are."""
    rows = [(key.name, f"{key.tokens_per_minute:,}", key.created) for key in keys]
    if not rows:
        rows = [("no keys", "make one with `millrace keys add NAME`", "")]
    print_table("API keys", ("name", "tokens a minute", "made"), rows)
