"""`millrace profile`: finds the serving configuration for a latency goal, and proves it."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, Overrides, PipelineFile, prepare, report

if TYPE_CHECKING:
    from millrace.serving.profile.record import Proof
    from millrace.tasks.profile import Profiled

SHOWN = 8
"""How many configurations are printed."""


def profile(
    file: PipelineFile,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="The version's number; the challenger if left out."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Measure again what was measured in the last day.")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Find the serving configuration that meets serving.slo, prove it, and store it."""
    chosen = prepare(file, overrides)
    with console.reserve_stdout():
        from millrace.models.config.pipeline_file import load_pipeline
        from millrace.tasks.profile import profile_version

        pipeline = load_pipeline(file, overrides or ())
        found = profile_version(pipeline, chosen.installation(), version, anew)
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
    print_note(f"p99 is expected, at {profile.goal.rate:g} requests/s; ~: expected, not measured")
    report(f"goal {profile.summary()}")
    for each in profile.proofs:
        report(f"  {each.bound}: {each.over:,} of {each.requests:,} requests took longer")
        report(f"    {_allowed(each, profile.confidence)}")
    gain = profile.capacity / found.found.current.measured if found.found.current.measured else None
    more = f", {gain:.2f} times the pipeline file's" if gain is not None else ""
    report(f"  most within the goal: {profile.capacity:,.4g} requests/s{more}")
    for name, value in profile.figures.items():
        report(f"  {name}: {value:,.3g}")
    report(
        f"  the load generator used {profile.client.core_share:.0%} of a core and was at most "
        f"{profile.client.lateness_p99_ms:.2g} ms late (p99)"
    )
    if profile.is_proved:
        console.print_hint("`millrace release` serves the version with this configuration")
        return
    for line in explain(found):
        console.print_hint(line)


def _allowed(proof: "Proof", confidence: float) -> str:
    """Return how many requests may take longer, or why there are too few for any proof."""
    if proof.allowed >= 0:
        return f"{proof.allowed:,} may have for {confidence:.0%} confidence"
    alike = f"{proof.correlation:.1f} successive requests count as one"
    return f"too few for {confidence:.0%} confidence: slow ones come together, so {alike}"


def explain(found: "Profiled") -> list[str]:
    """Return what is missing to the goal, and the nearest goals that can be met."""
    profile, chosen = found.profile, found.found.chosen
    lines = []
    for proof in profile.proofs:
        if proof.p99_ms is not None and proof.p99_ms > proof.bound_ms:
            ratio = proof.p99_ms / proof.bound_ms
            lines.append(
                f"p99 is {ratio:.2f} times the bound; at this rate set serving.slo.{proof.bound} "
                f"to {1.2 * proof.p99_ms:.3g}"
            )
    if chosen.measured and chosen.measured < profile.rate:
        lines.append(f"or at this bound set serving.slo.rate to {0.9 * chosen.measured:.3g}")
    return lines or ["more requests are needed to prove it: run the command again"]
