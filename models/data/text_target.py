"""Does the data fit the family? A text is continued by a language model, and by nothing else."""

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import TEXTS, ColumnSpec, DatasetSpec

CAUSAL_LM = "causal_lm"
PROMPT_HINT = "dataset.features: [] learns from the target alone, [prompt] answers a prompt by it"


def require_fitting(spec: DatasetSpec, family: str) -> None:
    """Refuse a text to continue for a family that predicts something else, and the other way round.

    Args:
        spec: the pipeline file's `dataset` part, with what its source adds.
        family: `model.family`.

    Raises:
        InputError: they do not fit.
    """
    declared = spec.columns.get(spec.target, ColumnSpec()).type
    if family != CAUSAL_LM:
        if spec.continued:
            raise _not_continued(spec, family)
        return
    if not spec.continued:
        raise InputError(
            f"the family {family!r} continues a text, and dataset.target {spec.target!r} is not "
            "said to be one",
            seen=declared or "its type is left out",
            valid=", ".join(TEXTS),
            hint=f"dataset.columns: {{{spec.target}: {{type: text}}}}; {PROMPT_HINT}",
        )
    if declared not in (None, *TEXTS):
        raise InputError(
            f"the family {family!r} continues a text, and dataset.target {spec.target!r} is none",
            seen=declared,
            valid=", ".join(TEXTS),
            hint="choose another dataset.target, or mend its type in dataset.columns",
        )
    _require_one_prompt(spec, declared)


def _require_one_prompt(spec: DatasetSpec, declared: str | None) -> None:
    most = 0 if declared == "messages" else 1
    if spec.features is None or len(spec.features) > most:
        raise InputError(
            "the messages of a chat hold the prompts already"
            if spec.features and most == 0
            else "a language model learns from one text, or from a prompt and its answer",
            seen="dataset.features: "
            + ("left out" if spec.features is None else ", ".join(spec.features)),
            valid="dataset.features: []" + (" or one column" if most else ""),
            hint=PROMPT_HINT if most else "write dataset.features: []",
        )


def _not_continued(spec: DatasetSpec, family: str) -> InputError:
    declared = spec.columns.get(spec.target, ColumnSpec()).type
    return InputError(
        f"the family {family!r} does not continue a text",
        seen=f"dataset.target {spec.target}: {declared or 'text'}, "
        + ("dataset.features: []" if spec.features == () else "to be answered"),
        valid=f"model.family: {CAUSAL_LM}",
        hint="or name columns to learn from in dataset.features, and a target that is a number "
        "or a category",
    )
