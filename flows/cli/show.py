"""Outcomes as tables, for people."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from millrace.flows.cli.show_language import (
    language_rows,
    promotion_rows,
    show_certified_language,
    show_text,
)
from millrace.flows.console import print_hint, print_table
from millrace.models.registry.mlflow_pages import version_page
from millrace.tasks.progress import recovery

if TYPE_CHECKING:
    from millrace.flows.cli.demo import DemoSummary
    from millrace.flows.cli.predict import LiveAnswer
    from millrace.flows.cli.predict_text import LiveText
    from millrace.flows.services.control import ServiceStatus, Status
    from millrace.flows.train_language import LanguageOutcome
    from millrace.flows.train_model import TrainOutcome
    from millrace.serving.release.live import Served
    from millrace.serving.release.outcome import Outcome
    from millrace.serving.release.release_state import Release
    from millrace.tasks.kinds.graph.graph_certify import LiveGraph
    from millrace.tasks.kinds.language.language_certify import LiveLanguage

Row = tuple[object, object]


def show_training(outcome: "TrainOutcome | LanguageOutcome", *, is_up: bool) -> None:
    """Print what a training run came to, and the next step.

    Args:
        outcome: what it came to.
        is_up: whether the services of this home run.
    """
    from millrace.flows.train_language import LanguageOutcome

    if is_language := isinstance(outcome, LanguageOutcome):
        rows = language_rows(outcome)
    else:
        rows = _training_rows(outcome)
    print_table(outcome.version.model, ("what", "value"), rows)
    version = f"{outcome.version.model} version {outcome.version.version}"
    if outcome.promotion.champion and is_up:
        print_hint(f"`millrace status` tells when {version} is live; its release has begun")
    elif outcome.promotion.champion:
        print_hint(f"`millrace up` serves {version}; a Triton elsewhere, `millrace release`")
    elif outcome.promotion.challenger:
        start = "" if is_up else "`millrace up`, then "
        place = f"on its page, {page}" if (page := _page(outcome)) else "in the MLflow UI"
        print_hint(f"{start}make {version} live by the alias champion, {place}")
    elif outcome.promotion.release:
        print_hint(
            f"{version} is not to be promoted: what is there is better. Train it otherwise, or "
            "loosen promotion.require"
        )
    elif "no better than" in outcome.promotion.reason:
        print_hint(
            f"{version} cannot be promoted: it has learnt nothing. Train it longer or with another "
            "learning rate, or see whether the target is what dataset.task takes it for"
        )
    else:
        print_hint(
            f"{version} cannot be promoted; loosen {_gates(is_language)}, name other "
            "export.candidates, or train it otherwise"
        )


def _gates(is_language: bool) -> str:
    if is_language:
        return "export.max_perplexity_increase or export.max_size_mib"
    return "export.max_metric_loss, export.max_size_mib or serving.latency_slo_ms"


def show_certified(found: "LiveGraph | LiveLanguage") -> None:
    """Print the stages of a certificate from PyTorch to the live server, and what does not hold."""
    from millrace.tasks.kinds.language.language_certify import LiveLanguage

    if isinstance(found, LiveLanguage):
        show_certified_language(found)
    else:
        _show_certified_graph(found)
    for fault in found.faults:
        print_hint(fault, label="fault")


def _show_certified_graph(found: "LiveGraph") -> None:
    certificate = found.certificate
    rows = [
        (
            stage.name + ("  ← chosen" if stage.name == certificate.candidate else ""),
            f"{stage.golden_difference:.2e}",
            "" if stage.metric is None else f"{stage.metric:.4f}",
            "" if stage.metric_loss is None else f"{stage.metric_loss:+.2%}",
        )
        for stage in certificate.stages
    ]
    version = f"{found.version.model} version {found.version.version} at {found.endpoint}"
    head = ("stage", "golden difference", certificate.metric_name, "loss")
    print_table(version, head, rows, numbers=1)
    sizes = ", ".join(map(str, found.sizes))
    what = f"{certificate.golden_rows} golden rows in requests of {sizes}"
    print_hint(f"{what}, and {certificate.test_rows:,} test rows", label="asked")


def show_demo(summary: "DemoSummary") -> None:
    """Print the one table of the demo."""
    batch = summary.batch
    rows = [
        *_training_rows(summary.training),
        ("live on Triton", f"version {summary.live_version}"),
        (
            "requests/s seen",
            f"{summary.requests_per_second:,.0f} (p50 {summary.load.p50_ms:.2f} ms, "
            f"p99 {summary.load.p99_ms:.2f} ms, {summary.load.errors} errors)",
        ),
        ("rows scored", f"{batch.rows:,} into {batch.table}, date={batch.date}"),
        ("rows/day", f"{summary.rows_per_day:,.0f} (a run of {batch.seconds:.1f} s, end to end)"),
    ]
    print_table("millrace demo", ("what", "value"), rows)
    print_hint(
        "`.venv/bin/millrace up` serves it for good, with the MLflow and Prefect UIs; "
        "the README's second part brings your own data"
    )


def show_release(outcomes: "Iterable[Outcome]") -> None:
    """Print what is live, and what changed."""
    rows = [
        (
            outcome.model,
            "none" if outcome.version is None else outcome.version,
            outcome.endpoint.grpc,
            _release_state(outcome),
        )
        for outcome in outcomes
    ]
    if not rows:
        rows = [
            (
                "none",
                "",
                "",
                "no model of Millrace has the alias champion: set it in MLflow",
            )
        ]
    print_table("release", ("model", "version", "Triton", "state"), rows)


def show_prediction(answer: "LiveAnswer | LiveText") -> None:
    """Print the answers of the live model; of a text, which was printed as it came, the figures."""
    from millrace.flows.cli.predict_text import LiveText

    if isinstance(answer, LiveText):
        show_text(answer)
        return
    pairs = zip(answer.predictions, answer.scores, strict=True)
    rows = [(label, f"{score:.4f}") for label, score in pairs]
    title = f"{answer.model} version {answer.version} at {answer.endpoint}"
    print_table(f"{title}, {answer.milliseconds:.1f} ms", ("prediction", "score"), rows)


def show_status(status: "Status") -> None:
    """Print what runs, and what is live."""
    rows = [
        (
            service.name,
            "healthy" if service.healthy else "running" if service.running else "stopped",
            f"{service.address}\ngRPC {service.grpc}" if service.grpc else service.address,
            service.pid or "",
            _uptime(service),
        )
        for service in status.services
    ]
    if not rows:
        rows = [("nothing runs", "start it with `millrace up`", "", "", "")]
    if status.orphans:
        left = f"{status.orphans} processes of an `up` that was killed"
        rows = [(left, "`millrace up` starts anew, `millrace down` ends them", "", "", "")]
    print_table(status.home, ("service", "state", "address", "pid", "up"), rows)


def show_served(served: "Sequence[Served]") -> None:
    """Print which version of each model is live, on how many replicas, and what was refused."""
    rows = [
        (
            each.model,
            "none" if each.version is None else each.version,
            each.replicas,
            (each.since or "")[:19].replace("T", " "),
            each.note,
        )
        for each in served
    ]
    if rows:
        print_table("served", ("model", "live", "replicas", "since (UTC)", "note"), rows)


def show_history(model: str, releases: "Sequence[Release]") -> None:
    """Print the releases of a model, the newest first."""
    rows = [
        (f"{each.at:%Y-%m-%d %H:%M:%S}", each.kind, each.version, _circumstances(each))
        for each in releases
    ]
    print_table(f"releases of {model}", ("at (UTC)", "what", "version", "why"), rows)


def _uptime(service: "ServiceStatus") -> str:
    """Return how long a service is up and, on a line of its own, how often it was restarted."""
    seconds, count = service.uptime_seconds, service.restarts
    up = "" if seconds is None else _duration(seconds)
    restarts = f"{count} restart{'s' if count > 1 else ''}" if count else ""
    return "\n".join(filter(None, (up, restarts)))


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units: `14 min 5 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((n for n, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def _circumstances(release: "Release") -> str:
    """Return why it happened and, on a line of its own, what else is known of it."""
    facts = [f"took {release.seconds:.1f} s"]
    if release.previous is not None:
        facts.append(f"before: {release.previous}")
    if release.asked_by:
        facts.append(f"asked by {release.asked_by}")
    return "\n".join(filter(None, (release.reason, "; ".join(facts))))


def _training_rows(outcome: "TrainOutcome") -> list[Row]:
    certificate, snapshot = outcome.certificate, outcome.snapshot
    state = "new" if snapshot.created else "unchanged"
    pytorch = certificate.stage("pytorch")
    rows: list[Row] = [
        ("snapshot", f"{snapshot.rows:,} rows, version {snapshot.version} ({state})"),
        (f"test {certificate.metric_name}", _number(pytorch.metric if pytorch else None)),
    ]
    if snapshot.quarantined:
        rows.append(("quarantined", f"{snapshot.quarantined:,} rows: {dict(snapshot.reasons)}"))
    rows += [("workers failed", recovery(epoch, "epoch")) for epoch in outcome.recoveries]
    if certificate.constant is not None:
        rows.append(("always the same", f"{certificate.metric_name} {certificate.constant:.4f}"))
    for candidate in outcome.candidates:
        if candidate.stage is None or candidate.speed is None:
            rows.append((candidate.name, candidate.reason))
            continue
        of_it = "chosen" if certificate.passed else "the nearest"
        mark = f"  ← {of_it}" if candidate.name == certificate.candidate else ""
        rows.append(
            (
                candidate.name,
                f"{candidate.size_bytes / 1024:,.0f} KiB, {candidate.speed.p50_ms:.3f} ms, "
                f"{candidate.speed.rows_per_second:,.0f} rows/s, "
                f"{certificate.metric_name} {_number(candidate.stage.metric)}"
                f"{', ' + candidate.reason if candidate.reason else ''}{mark}",
            )
        )
    if (reference := certificate.reference) is not None:
        size = "" if reference.size_bytes is None else f"{reference.size_bytes / 1024:,.0f} KiB, "
        metric = f"{certificate.metric_name} {_number(reference.metric)}"
        rows.append((f"beside it: {reference.name}", size + metric))
    champion = "champion" if outcome.promotion.champion else "not champion"
    version = f"{outcome.version.model} version {outcome.version.version}"
    rows.append(("registered", f"{version}, {champion}: {outcome.promotion.reason}"))
    return rows + promotion_rows(outcome.promotion)


def _page(outcome: "TrainOutcome | LanguageOutcome") -> str:
    """Return the version's page in the MLflow UI; empty where no server shows one."""
    address, version = outcome.run.tracking_uri.rstrip("/"), outcome.version
    if not address.startswith(("http://", "https://")):
        return ""
    return version_page(address, version.model, version.version)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _release_state(outcome: "Outcome") -> str:
    if outcome.error is not None:
        return f"{outcome.error.what}: {outcome.error.seen or outcome.error.hint}"
    if not outcome.changed:
        return "live, unchanged"
    return f"live, was {outcome.previous or 'not served'}, {outcome.seconds:.2f} s"
