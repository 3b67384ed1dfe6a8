"""`millrace profile`: finds the serving configuration for a latency goal, and proves it."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, Overrides, PipelineFile, prepare, report
from millrace.models.common.counted import short

if TYPE_CHECKING:
    from millrace.serving.profile.record import Proof
    from millrace.tasks.profile import Profiled

SEEN_CORRELATION = 1.5
"""From this many requests that count as one on, it is said."""
SHOWN = 8
"""How many configurations are printed."""


def profile(
    file: PipelineFile,
    version: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The version's number; by default the challenger, or the newest that passed.",
        ),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Measure again what was measured in the last day.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Try no further configuration after so many minutes; the proof follows."
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Find the serving configuration that meets serving.slo, prove it, and store it."""
    chosen = prepare(file, overrides)
    with console.reserve_stdout():
        from millrace.models.config.pipeline_file import load_pipeline
        from millrace.tasks.profile import profile_version

        pipeline = load_pipeline(file, overrides or ())
        found = profile_version(pipeline, chosen.installation(), version, anew, minutes)
    if as_json:
        console.print_json(found.as_json())
    else:
        _show(found)
    if not found.profile.is_proved:
        raise typer.Exit(1)


def profile_champions() -> None:
    """Profile each champion whose release needs a proof that it lacks, and say what was found."""
    chosen = prepare()
    with console.reserve_stdout():
        from millrace.tasks.profile import profile_unproved

        for found in profile_unproved(chosen.installation()):
            profile = found.profile
            report(f"{profile.model} version {profile.version}: goal {profile.summary()}")


def _show(found: "Profiled") -> None:
    from millrace.tasks.profile import describe, head_of

    profile = found.profile
    print_note = partial(console.print_hint, label="note")
    title = f"{profile.model} version {profile.version}, on {profile.machine}"
    rows = [describe(each) for each in found.found.considered[:SHOWN]]
    console.print_table(title, head_of(found.found), rows)
    print_note(
        f"latencies are what the event model expects at {short(profile.goal.rate)} requests/s; "
        "requests/s: most within the goal, ~: expected, not measured"
    )
    report(f"goal {profile.summary()}")
    for each in profile.proofs:
        report(f"  {each.bound}: {each.over:,} of {each.requests:,} requests took longer")
        report(f"    {_allowed(each, profile.confidence)}")
    gain = profile.capacity / found.found.current.measured if found.found.current.measured else None
    more = f", {gain:.2f} times the pipeline file's" if gain is not None else ""
    report(f"  most within the goal: {short(profile.capacity)} requests/s{more}")
    for name, value in profile.figures.items():
        report(f"  {name}: {short(value)}")
    report(
        f"  the load generator used {profile.client.core_share:.0%} of a core and was at most "
        f"{short(profile.client.lateness_p99_ms)} ms late (p99)"
    )
    if found.kept is not None:
        print_note(
            f"the version keeps its profile with the goal {found.kept.summary()}; this one is in "
            f"MLflow run {found.run_id} only"
        )
    elif profile.is_proved and found.other_goal:
        print_note(
            f"{found.other_goal}; to serve this goal, put it into the pipeline file and run that"
        )
    elif profile.is_proved:
        console.print_hint("`millrace release` serves the version with this configuration")
    if profile.is_proved:
        return
    for line in explain(found):
        console.print_hint(line)


def written(value: float) -> str:
    """Return a number as it is written in a pipeline file, with three digits or whole."""
    return short(value).replace(",", "")


def _allowed(proof: "Proof", confidence: float) -> str:
    """Return how many requests may take longer, or why there are too few for any proof."""
    alike = f"slow ones come together, so {proof.correlation:.1f} successive ones count as one"
    if proof.allowed >= 0:
        why = f" ({alike})" if proof.correlation >= SEEN_CORRELATION else ""
        return f"{proof.allowed:,} may have for {confidence:.0%} confidence{why}"
    if not proof.is_within:
        return "at most 1% may have"
    return f"too few requests for {confidence:.0%} confidence: {alike}"


def explain(found: "Profiled") -> list[str]:
    """Return what is missing to the goal, and the nearest goals that can be met."""
    profile, chosen = found.profile, found.found.chosen
    lines = []
    for proof in profile.proofs:
        if proof.p99_ms is not None and proof.p99_ms > proof.bound_ms:
            ratio = proof.p99_ms / proof.bound_ms
            lines.append(
                f"p99 is {ratio:.2f} times the bound; at this rate set serving.slo.{proof.bound} "
                f"to {written(1.2 * proof.p99_ms)}"
            )
    if chosen.measured and chosen.measured < profile.rate:
        lines.append(f"or at this bound set serving.slo.rate to {written(0.9 * chosen.measured)}")
    return lines or ["more requests are needed to prove it: run the command again"]
