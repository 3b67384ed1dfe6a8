"""Prints the outcomes of commands as tables and notes; `--json` prints all of their data."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from millrace.flows.console import print_hint, print_piece, print_table
from millrace.models.common.counted import counted
from millrace.models.registry.mlflow_pages import REGISTRY, page, version_page

if TYPE_CHECKING:
    from millrace.flows.cli.lineage import Lineage
    from millrace.flows.deployments.schedule_state import Schedule, Schedules
    from millrace.flows.services.control import ServiceStatus, Status
    from millrace.flows.train_model import TrainOutcome
    from millrace.models.registry.gates import Promotion
    from millrace.serving.batch.input.row_lineage import Origin
    from millrace.serving.batch.monitoring.batch_report import BatchReport
    from millrace.serving.release.live import Served
    from millrace.serving.release.outcome import Outcome
    from millrace.serving.release.release_state import Release
    from millrace.tasks.kinds.steps import Answer, LiveCertificate, Table

Row = tuple[object, object]
MATCHES = "match the certified ones"
"""End of the sentence of a release that waits for nothing but its own check."""
DIGEST, FIRST_DIGITS = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}\b"), r"\1…"


def show_training(outcome: "TrainOutcome", *, is_up: bool) -> None:
    """Print the outcome of a training run, and the next step.

    Args:
        outcome: the outcome of the run.
        is_up: whether the services of this home run.
    """
    print_table(outcome.version.model, ("what", "value"), training_rows(outcome))
    version = f"{outcome.version.model} version {outcome.version.version}"
    if outcome.promotion.champion and is_up:
        print_hint(f"the release of {version} has begun; `millrace status` shows when it is live")
    elif outcome.promotion.champion:
        print_hint(f"`millrace up` serves {version}; for a Triton elsewhere run `millrace release`")
    elif outcome.promotion.challenger:
        start = "" if is_up else "`millrace up`, then "
        place = f"on its page, {url}" if (url := _version_page(outcome)) else "in the MLflow UI"
        command = f"millrace promote {outcome.version.model} {outcome.version.version}"
        waits = "" if outcome.promotion.release.endswith(MATCHES) else ", once the above is there"
        print_hint(
            f"{start}`{command}` makes {version} live{waits}; so does the alias champion {place}"
        )
    elif outcome.promotion.release:
        print_hint(
            f"{version} should not be promoted, because a release would refuse it. Change the "
            "training, or loosen promotion.require"
        )
    elif "no better than" in outcome.promotion.reason:
        print_hint(
            f"{version} cannot be promoted, because it has learnt nothing. Train it longer or with "
            "another learning rate, check whether dataset.task fits the target, and see with "
            "`millrace check` whether a few rows are far outside: dataset.columns limits them "
            "(max), and dataset.null_values names words for null"
        )
    else:
        print_hint(
            f"{version} cannot be promoted; loosen {_either(outcome.gates)}, choose other "
            "export.candidates, or change the training"
        )


def _either(keys: Sequence[str]) -> str:
    """Return `a, b or c`."""
    return " or ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))


def show_certified(found: "LiveCertificate") -> None:
    """Print the stages of a certificate up to the live server, and the faults that were found."""
    version = f"{found.version.model} version {found.version.version} at {found.endpoint}"
    _print(version, found.table())
    for fault in found.faults:
        print_hint(fault, label="fault")


def _print(title: str, table: "Table") -> None:
    if table.rows:
        print_table(title, table.head, table.rows, numbers=table.numbers)
    for label, note in table.notes:
        print_hint(note, label=label)


def show_release(outcomes: "Iterable[Outcome]") -> None:
    """Print the live version of each model, and what changed."""
    rows = [
        (
            outcome.model,
            "none" if outcome.version is None else outcome.version,
            str(outcome.endpoint),
            _release_state(outcome),
        )
        for outcome in outcomes
    ]
    if not rows:
        rows = [("none", "", "", "no model of Millrace has the alias champion: set it in MLflow")]
    print_table("release", ("model", "version", "Triton", "state"), rows)


def show_prediction(answer: "Answer") -> None:
    """Print the answers of the live model, or the statistics of a streamed answer."""
    table = answer.table()
    if not table.rows:
        print_piece("\n")
    _print(answer.title, table)


def show_status(status: "Status") -> None:
    """Print the state of each service."""
    rows = [
        (
            service.name,
            _service_state(service),
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
    for line in describe_replicas(status):
        print_hint(line, label="replicas")


def describe_replicas(status: "Status") -> Iterator[str]:
    """Yield how many replicas of Triton there are and why; nothing where one runs alone."""
    found = status.replicas
    if found is None:
        return
    serving = sum(each.state == "serving" for each in found.replicas)
    bounds = f"{found.fewest} to {found.most}" if found.most > found.fewest else f"{found.most}"
    yield f"{serving} serving, {found.wanted} wanted, {bounds} allowed: {found.reason}"
    if found.needed is not None:
        yield f"the load needs {found.needed}; serving.replicas.dry_run only says so"
    if found.fault:
        yield found.fault


def _service_state(service: "ServiceStatus") -> str:
    if service.use:
        return service.use
    return "healthy" if service.healthy else "running" if service.running else "stopped"


def describe_status(status: "Status") -> Iterator[str]:
    """Yield lines: where to promote models, how to log in to Prefect, and what is scheduled.

    Yields no lines if Millrace does not run.
    """
    if not status.running:
        return
    mlflow = next((each.address for each in status.services if each.name == "mlflow"), "")
    if mlflow:
        yield f"registry: {page(mlflow, REGISTRY)}"
    if status.prefect_login:
        command = f"cat {shlex.quote(status.prefect_login)}; echo"
        yield f"Prefect's UI asks each browser once for a password: the whole output of `{command}`"
    if status.schedules is None:
        yield "scheduled: not known yet, because Prefect was not checked yet"
    else:
        yield from _describe_schedules(status.schedules)


def _describe_schedules(found: "Schedules") -> Iterator[str]:
    by_file: dict[str, list[str]] = {}
    for schedule in found.schedules:
        if schedule.file:
            by_file.setdefault(schedule.file, []).append(_describe_schedule(schedule))
    for file, schedules in by_file.items():
        yield f"scheduled: {file} ({'; '.join(schedules)})"
    if not by_file:
        yield "scheduled: no pipeline file; name yours in MILLRACE_PIPELINES"
    for fault in found.faults:
        yield f"not scheduled as it is now: {fault.file}: {fault.reason}"
    if not found.settled:
        yield "Prefect's deployments differ from these schedules, and are being restored"
    for each in found.put_back[-3:]:
        yield f"restored: {each.deployment} at {each.at}; {each.what}"


def _describe_schedule(schedule: "Schedule") -> str:
    when = f"{schedule.cron} {schedule.timezone}" if schedule.cron else "only on request"
    return f"{schedule.deployment} {when}{', paused in Prefect' if schedule.paused else ''}"


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


def show_disk(disk: "Mapping[str, int]") -> None:
    """Print what each kind of files takes on the disk, the largest first."""
    ranked = sorted(disk.items(), key=lambda each: -each[1])
    rows = [(kind, decimal(size)) for kind, size in ranked]
    if rows:
        rows.append(("all", decimal(sum(disk.values()))))
        print_table("disk", ("of", "size"), rows, numbers=1)


def show_history(model: str, releases: "Sequence[Release]") -> None:
    """Print the releases of a model, the newest first."""
    rows = [
        (f"{each.at:%Y-%m-%d %H:%M:%S}", each.kind, each.version, _circumstances(each))
        for each in releases
    ]
    print_table(f"releases of {model}", ("at (UTC)", "what", "version", "why"), rows)


def _uptime(service: "ServiceStatus") -> str:
    """Return how long a service has been up and, on its own line, how often it was restarted."""
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
    """Return the reason for a release and, on its own line, further facts about it."""
    facts = [f"took {release.seconds:.1f} s"]
    if release.previous is not None:
        facts.append(f"previous version: {release.previous}")
    if release.asked_by:
        facts.append(f"asked by {release.asked_by}")
    return "\n".join(filter(None, (release.reason, "; ".join(facts))))


def training_rows(outcome: "TrainOutcome") -> list[Row]:
    """Return the table rows for a training run."""
    from millrace.models.data.sample_check import describe_reasons

    snapshot, promotion = outcome.snapshot, outcome.promotion
    state = "new" if snapshot.created else "unchanged"
    rows: list[Row] = [
        ("snapshot", f"{counted(snapshot.rows, 'row')}, version {snapshot.version} ({state})")
    ]
    if snapshot.quarantined:
        reasons = describe_reasons(snapshot.reasons)
        rows.append(("quarantined", f"{counted(snapshot.quarantined, 'row')}: {reasons}"))
    rows += [("workers failed", failure) for failure in outcome.failures]
    rows += outcome.report.rows
    champion = "champion" if promotion.champion else "not champion"
    version = f"{outcome.version.model} version {outcome.version.version}"
    return [
        *rows,
        ("registered", f"{version}, {champion}: {promotion.reason}"),
        *_promotion_rows(promotion),
    ]


def _promotion_rows(promotion: "Promotion") -> list[Row]:
    """Return rows with the version that the new one would replace, and what a release would do."""
    rows: list[Row] = []
    if (other := promotion.beside) is not None:
        facts = [other.candidate] if other.candidate else []
        facts += [] if other.size_bytes is None else [f"{other.size_bytes / 1024:,.0f} KiB"]
        measured = "not measurable" if other.metric is None else f"{other.metric:.4f}"
        facts.append(f"{other.metric_name} {measured} on the same test split")
        what = "live" if other.is_live else "champion"
        rows.append((f"{what} now: version {other.version}", ", ".join(facts)))
        if other.verdict:
            rows.append((f"against version {other.version}", other.verdict))
    return [*rows, ("release", promotion.release)] if promotion.challenger else rows


def _version_page(outcome: "TrainOutcome") -> str:
    """Return the URL of the version's page in the MLflow UI; empty if there is no MLflow server."""
    address, version = outcome.run.tracking_uri.rstrip("/"), outcome.version
    if not address.startswith(("http://", "https://")):
        return ""
    return version_page(address, version.model, version.version)


def _release_state(outcome: "Outcome") -> str:
    if outcome.error is not None:
        return f"{outcome.error.what}: {outcome.error.seen or outcome.error.hint}"
    if not outcome.changed:
        return "live, unchanged"
    return f"live, was {outcome.previous or 'not served'}, {outcome.seconds:.2f} s"


def show_batch(report: "BatchReport") -> None:
    """Print the report of a batch job."""
    approval = f"{'yes' if report.approved else 'no'}: {report.approval}"
    rows: list[Row] = [
        ("table", f"{report.table} version {report.table_version}"),
        ("date", report.date),
        ("model", f"{report.model} version {report.model_version}"),
        *([("approved", approval)] if report.approved is not None else []),
        *([("input", _shorten(report.input))] if report.input else []),
        ("rows", f"{report.rows:,}"),
        ("scored", f"{report.scored:,}"),
        *([("replaces", _shorten(report.replaced))] if report.replaced else []),
        ("dead letters", f"{report.dead:,}"),
        *([("as live", report.agreement)] if report.agreement else []),
        *_speed_rows(report),
    ]
    print_table("batch", ("what", "value"), rows)


def _speed_rows(report: "BatchReport") -> list[Row]:
    if report.unchanged:
        return [("done", "before, with the same model, input and parameters; nothing was run")]
    run = f"(a run of {report.seconds:.1f} s, end to end)"
    rows: list[Row] = [
        ("rows/s", f"{report.rows_per_second:,.0f}"),
        ("rows/day", f"{report.rows_per_day:,.0f} {run}"),
    ]
    if report.resumed:
        if report.rows_per_second == 0:
            rows = [("speed", f"not known, because no row was left to score {run}")]
        rows.insert(
            0, ("resumed", f"{counted(report.resumed, 'row')} of an earlier, unfinished run")
        )
    if report.tokens_in is not None and report.tokens_out is not None:
        rows += [
            ("input tokens", f"{report.tokens_in:,}"),
            ("output tokens", f"{report.tokens_out:,}"),
        ]
    return rows


def show_lineage(found: "Sequence[Lineage]") -> None:
    """Print the lineage of each row, the newest date first."""
    for each in found:
        row = each.answer if each.origin is None else each.origin.row
        print_table(f"lineage of {row['_key']}", ("what", "value"), [*_lineage_rows(each)])


def _lineage_rows(found: "Lineage") -> Iterator[Row]:
    yield from _answer_rows(found.answer) if found.origin is None else _origin_rows(found.origin)
    if found.version:
        yield "model", _join(found.version)
    for file in found.data.get("files", [found.data] if found.data else []):
        yield "learnt from", _join(file)
    if "removed" in found.data:
        yield "training rows", found.data["removed"]
    if not found.releases:
        yield "release", "none: this home has not released the version"
    for event in found.releases:
        yield "release", _join(event)


def _origin_rows(origin: "Origin") -> Iterator[Row]:
    row = {name: value for name, value in origin.row.items() if name not in ("_key", "_row")}
    yield "row", _join(row)
    yield (
        "from",
        f"row {origin.place:,} of {origin.file or 'an unknown file'}, counted from 0",
    )
    if origin.manifest or origin.source:
        yield "input", _join({**origin.source, **origin.manifest})
    yield "job", f"{origin.job}, version {origin.table_version} of the table"
    yield "committed", _join(origin.committed)


def _answer_rows(answer: Mapping[str, Any]) -> Iterator[Row]:
    yield "asked", f"row {answer['row_number']} of the request {answer['request']}"
    yield "at", str(answer["time"])
    yield "row", str(answer["row"])
    yield "answer", _join({name: answer[name] for name in ("prediction", "score")})


def _shorten(text: str) -> str:
    """Return a text in which each digest is cut to its first digits."""
    return DIGEST.sub(FIRST_DIGITS, text)


def _join(values: Mapping[str, Any]) -> str:
    """Return names and values in one line, with shortened digests; `--json` prints full digests."""
    known = ((name, value) for name, value in values.items() if value not in ("", None))
    return ", ".join(f"{name} {_shorten(str(value))}" for name, value in known)
