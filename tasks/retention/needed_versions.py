"""Which versions of a model somebody needs, and why."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.release_state import ReleaseState
from millrace.tasks.batch.batch_run import VERSION

if TYPE_CHECKING:
    from mlflow.entities import Run


def find_aliased(versions: Iterable[ModelVersion]) -> dict[int, str]:
    """Return the versions that an alias points at."""
    return {each.version: f"alias {', '.join(each.aliases)}" for each in versions if each.aliases}


def find_released(state: ReleaseState) -> dict[int, str]:
    """Return the versions that serving needs."""
    found: dict[int, str] = {}
    if state.superseded is not None:
        found[state.superseded] = "served before the live version"
    for event, why in (
        (state.accepted, "batch jobs score with it"),
        (state.proved, "about to go live"),
        (state.step, "in a rollout"),
        (state.live, "live"),
    ):
        if event is not None:
            found[event.version] = why
    return found


def find_scoring(running: Iterable["Run"]) -> dict[int, str]:
    """Return the versions that running batch jobs of the model score with."""
    numbers = (run.data.tags.get(VERSION, "") for run in running)
    return {int(number): "a running job scores with it" for number in numbers if number.isdigit()}


def find_unfinished(versions: Iterable[ModelVersion], running: Iterable["Run"]) -> dict[int, str]:
    """Return the versions whose runs have not ended: they may still get an alias."""
    ids = {run.info.run_id for run in running}
    return {each.version: "its run has not ended" for each in versions if each.run_id in ids}


def find_named(texts: Mapping[str, str], model: str) -> dict[int, str]:
    """Return the versions that texts name as `NAME/VERSION` or `models:/NAME/VERSION`.

    Args:
        texts: by what is said of a version that the text names, such as "named in FILE".
        model: the model.
    """
    name = rf"(?:(?<=models:/)|(?<![\w.@:/-])){re.escape(model)}"
    pattern = re.compile(rf"{name}/([1-9][0-9]*)(?![\w./-])")
    return {int(number): why for why, text in texts.items() for number in pattern.findall(text)}
