"""Addresses of pages in MLflow's UI.

Since MLflow 3.17 the UI opens in its mode for language-model applications, without the registry,
unless the query inside the address's fragment names another mode. On pages without this query a tag
of the experiment sets the mode. The list of registered models drops the query after loading, so the
side bar shows the wrong mode, although the list is right. The page of a model keeps the query.
"""

import re

TRAINING = "workflowType=machine_learning"
REGISTRY = "#/models"

KIND = "mlflow.experimentKind"
"""Name of MLflow's tag for the kind of work in an experiment."""
KIND_OF_OURS = "custom_model_development"


SPACE = "&emsp;"
_COLUMN_END = re.compile(r"(?<!\\) \|(?= )")
MODEL_PAGE = """Trained by `millrace run`. Each version is an exported variant with its certificate.

| alias | |
| --- | --- |
| `champion` | the version that answers requests and scores at night; moving it is the release |
| `challenger` | the newest version that passed its gates and that a release would take |
"""
"""Description of a registered model, Markdown."""


def for_mlflow(markdown: str) -> str:
    """Return Markdown with space between the columns of its tables, which MLflow's pages lack."""
    lines = []
    for line in markdown.replace(SPACE, "").split("\n"):
        is_row = line.startswith("| ") and line.endswith(" |") and set(line) - set("| -")
        lines.append(_COLUMN_END.sub(f"{SPACE} |", line) if is_row else line)
    return "\n".join(lines)


def page(address: str, path: str) -> str:
    """Return the address of a page.

    Args:
        address: address of the MLflow server.
        path: path of the page, beginning with `#/`.
    """
    return f"{address.rstrip('/')}/{path}{'&' if '?' in path else '?'}{TRAINING}"


def version_page(address: str, model: str, version: int) -> str:
    """Return the address of the page of a model version, where its aliases are set."""
    return page(address, f"#/models/{model}/versions/{version}")


def describe_verdict(verdict: str) -> str:
    """Return the Markdown of how a version compares with the one that it would replace."""
    return f"**Compared with {verdict}**"


def describe_promotion(model: str, newest: int | None, tracking_uri: str, failed: int = 0) -> str:
    """Return what a user does next, so that a model has a champion.

    Args:
        model: the model's name.
        newest: number of its newest version that passed its gates; None if it has none.
        tracking_uri: address of the MLflow server; without a server, a database.
        failed: number of its versions that did not pass their gates.
    """
    if newest is None and failed:
        return (
            f"no version of {model} has passed its gates (versions: {failed:,}); `millrace run "
            "FILE` trains another, `millrace score FILE --version N` scores with one anyway"
        )
    if newest is None:
        return "`millrace run FILE`, then give the version the alias champion in the MLflow UI"
    give = f"give {model} version {newest} the alias champion"
    if tracking_uri.startswith(("http://", "https://")):
        return f"{give} on its page, {version_page(tracking_uri, model, newest)}"
    return f"`millrace up`, then {give} in the MLflow UI"
