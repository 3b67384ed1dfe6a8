"""The command line: `millrace COMMAND`."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends the process without their stack trace; see `_run_command`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pkgutil import resolve_name
from types import FrameType
from typing import Annotated, NoReturn

import typer

from millrace.flows import console
from millrace.flows.cli.child_process import run_and_exit, run_in_child
from millrace.flows.cli.command_setup import end_left_runs, load_settings, report
from millrace.models.common.errors import MillraceError, write_trace
from millrace.models.common.external_errors import explain_external_error

INTERRUPTED, TERMINATED = 130, 143
_stopped = INTERRUPTED
"""The exit code of a command that a signal stops."""
RAY_COMMANDS = {"run", "score", "demo"}
"""Commands that connect to Ray, whose core can end every process that is connected to it."""
COMMANDS = {
    "init": "init:init",
    "check": "pipeline_commands:check",
    "plan": "plan:plan",
    "schema": "pipeline_commands:schema",
    "run": "pipeline_commands:run",
    "release": "pipeline_commands:release",
    "score": "pipeline_commands:score",
    "demo": "pipeline_commands:demo",
    "predict": "predict:predict",
    "profile": "profile:profile",
    "compare": "version_commands:compare",
    "promote": "version_commands:promote",
    "rollback": "version_commands:rollback",
    "delete": "version_commands:delete",
    "certify": "model_commands:certify",
    "history": "model_commands:history",
    "lineage": "model_commands:lineage",
    "feedback": "feedback:feedback",
    "sign": "sign_version:sign",
    "keys": "api_keys:keys",
    "up": "service_commands:up",
    "down": "service_commands:down",
    "status": "service_commands:status",
    "schedule": "schedule:schedule",
    "clean": "clean:clean",
    "forget": "forget:forget",
    "backup": "backup:backup",
    "restore": "backup:restore",
}
"""Where the function of each command is, or the `typer.Typer` of a command with subcommands."""


REMOVING_COMMANDS = {"clean", "forget"}
"""The commands that remove one thing after the other, so that a stopped one has removed some."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the named commands; only their modules are imported."""
    app = typer.Typer(
        name="millrace",
        help="From a dataset to a served model and a nightly table of predictions.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    app.callback()(_options)  # with one command only, typer would not expect its name
    for name in names:
        found = resolve_name(f"millrace.flows.cli.{COMMANDS[name]}")
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {version('millrace')}")
        raise typer.Exit


def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command; a user's mistake gives an error message and exit code 2, no stack trace."""
    as_json = "--json" in sys.argv
    command = partial(_run_command, as_json=as_json)
    if not RAY_COMMANDS & set(sys.argv[1:2]):
        signal.signal(signal.SIGTERM, _terminate)
        run_and_exit(command)
    show = partial(console.print_error, as_json=as_json)
    run_in_child(command, show, end_left_runs, lambda: report(_describe_stop()))


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """Let SIGTERM end the command as Ctrl-C does, with an exit code of its own."""
    global _stopped
    del signum, frame
    _stopped = TERMINATED
    signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))
    raise KeyboardInterrupt


def _run_command(*, as_json: bool) -> None:
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # from here, Ctrl-C is reported
            signal.signal(signal.SIGINT, signal.default_int_handler)
        make_app({*sys.argv[1:2]} & COMMANDS.keys() or COMMANDS)()
    except SystemExit as ended:
        if ended.code != INTERRUPTED:  # typer's exit code for Ctrl-C
            raise
        _stop()
    except KeyboardInterrupt:  # while typer was still being set up
        _stop()
    except Exception as error:
        # A `MillraceError`, a known error of an external tool, or else a bug in Millrace.
        reported = explain_external_error(error) or _unexpected_error(error)
        console.print_error(reported, as_json=as_json)
        sys.exit(reported.exit_code)


def _stop() -> NoReturn:
    """Say that the command was stopped, and exit; a second Ctrl-C ends it in the middle of that.

    Ray and Prefect's server notice the end of their command, and end by themselves.
    """
    report(_describe_stop())
    signal.signal(signal.SIGINT, lambda *_: os._exit(_stopped))
    sys.exit(_stopped)


def _describe_stop() -> str:
    if {*sys.argv[1:2]} & REMOVING_COMMANDS:
        return "stopped; what was removed stays removed: run the same command again for the rest"
    return "stopped; nothing unfinished was published"


def _unexpected_error(error: Exception) -> MillraceError:
    """Return the error for an unexpected exception; its hint names the stack trace's file."""
    logs = None
    with suppress(MillraceError):  # a setting may be the cause
        logs = load_settings().installation().logs
    return MillraceError(
        "an unexpected error ended the command",
        seen=f"{type(error).__name__}: {error}",
        hint="run the command again; if the error stays, report it with "
        f"{write_trace(error, logs)}",
    )
