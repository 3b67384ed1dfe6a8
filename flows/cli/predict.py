"""`millrace predict`: sends one question to the live version of a model."""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, prepare
from millrace.models.common.errors import InputError, TransientError, nearest
from millrace.models.common.installation import Installation

if TYPE_CHECKING:
    from millrace.models.registry.version_files import ModelVersion
    from millrace.serving.triton.client import TritonClient
    from millrace.tasks.kinds.steps import Answer, Question


def predict(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    rows: Annotated[
        str | None,
        typer.Option(help="JSON Lines file of rows, or - for stdin; a golden row if left out."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="For a language model: the prompt, or - for stdin."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send one request to the live model."""
    chosen = prepare()
    from millrace.flows.cli import show
    from millrace.tasks.kinds.steps import Question

    print_text = (lambda piece: None) if as_json else console.print_piece
    answer = predict_live(chosen.installation(), model, Question(rows, text, print_text))
    console.print_json(answer) if as_json else show.show_prediction(answer)


def predict_live(installation: Installation, model: str, question: "Question") -> "Answer":
    """Send a question to the live version of a model.

    Args:
        installation: where Triton and the registry are.
        model: the model.
        question: rows, or a text to continue; if it has neither, a golden request is sent.

    Raises:
        InputError: the model is not served, or does not accept such a question.
        TransientError: Triton cannot be reached, or has not loaded the champion yet.
    """
    from millrace.models.registry.mlflow_registry import registry_of
    from millrace.models.registry.version_files import CHAMPION
    from millrace.serving.triton.client import TritonClient
    from millrace.tasks.kinds.steps import steps_of

    with TritonClient(installation.triton[0]) as client:
        registry = registry_of(installation)
        version = client.live_version(model)
        if version is None:
            raise _not_served(installation, client, model, registry.by_alias(model, CHAMPION))
        package = registry.fetch(registry.version(model, version))
        return steps_of(package.version.kind).predict(client, package, question)


def _not_served(
    installation: Installation, client: "TritonClient", model: str, champion: "ModelVersion | None"
) -> InputError | TransientError:
    """Return the error for a model that is not loaded: refused, not loaded yet, or no champion."""
    from millrace.serving.release.ledger import ledger_of
    from millrace.serving.release.release_state import DesiredVersion, derive_state
    from millrace.serving.triton.server_index import READY

    state = derive_state(ledger_of(installation).releases(model))
    if champion is not None and state.has_refused(
        DesiredVersion(champion.version, champion.digest)
    ):
        return InputError(
            f"version {champion.version} of {model} is the champion, but its release was refused",
            seen=state.refused.reason if state.refused else None,
            hint="move the alias champion, or retry this version with `millrace release`",
        )
    if champion is not None:
        return TransientError(
            f"version {champion.version} of {model} is the champion, but Triton has not loaded it",
            hint="it is loaded within a minute of Triton's start; `millrace release` loads it now",
        )
    loaded = sorted({each.name for each in client.index() if each.state == READY})
    return InputError(
        f"Triton does not serve {model!r}",
        valid=", ".join(loaded) or "no model is loaded",
        hint=nearest(model, loaded)
        or "give a version the alias champion, then run `millrace release`",
    )
