"""ModelKind: the interface of a kind of model, and the table of all kinds.

Shared code (flows, tasks, registry, release, batch) calls this interface and never tests of which
kind a model is. Code of only one kind is in `tasks/kinds/KIND/` and in the folders that
CONTRIBUTING.md lists. One line of `KINDS` registers a kind. The class is imported when the kind is
used, so commands that train nothing do not import it.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from millrace.models.common.errors import InputError
from millrace.models.config import Spec
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.training_spec import ModelSpec

KINDS: dict[str, str] = {
    "graph": "millrace.tasks.kinds.graph.graph_kind:GraphKind",
    "language": "millrace.tasks.kinds.language.language_kind:LanguageKind",
    "gradient_boosting": "millrace.tasks.kinds.gradient_boosting.boosting_kind:BoostingKind",
}
"""The class of each kind by the kind's name, which its versions have as the tag `millrace.kind`."""
FIRST_KIND = next(iter(KINDS))
"""The kind of a family that no kind lists, and of a version without the tag `millrace.kind`."""


class ModelKind(Protocol):
    """One kind of model.

    Attributes:
        name: its name in `KINDS`.
        families: its values of `model.family`.
        keys: pipeline file keys of this kind that not every kind has, by part of the file.
        variants: names allowed in `export.candidates`.
        default_variants: variants if the pipeline file has no `export.candidates`; empty: the
            default of `ExportSpec`.
        rollouts: allowed values of `rollout.kind`.
        gates: pipeline file keys whose limits a candidate must meet.
        evidence_files: names of the files beside the model in a registered version.
        model_folder: folder of the model's files in a version; empty: the version's own folder.
        model_files: names of the model's files; empty: all files in `model_folder`.
        triton: the class that writes Triton's configuration, as `module:Class`; see
            `serving/triton/version_config.py`.
        derived_tables: tables made of a snapshot, with the dataset's name, that a run makes again
            if they are gone.
        steps: the function for each step from training to serving, as `module:function`; see
            `tasks/kinds/steps.py`.
        folders: folders and files of the repository that may contain code for this kind, beside
            tests and docs.
    """

    name: str
    families: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]
    variants: tuple[str, ...]
    default_variants: tuple[str, ...]
    rollouts: tuple[str, ...]
    gates: tuple[str, ...]
    evidence_files: tuple[str, ...]
    model_folder: str
    model_files: tuple[str, ...]
    triton: str
    derived_tables: tuple[str, ...]
    steps: Mapping[str, str]
    folders: tuple[str, ...]

    def trains(self, family: str) -> bool:
        """Return whether a `model.family` is of this kind."""
        return family in self.families

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Refuse a dataset that the family cannot learn from.

        Args:
            spec: the pipeline file's `dataset` part, with the settings that its source adds.
            family: `model.family`.

        Raises:
            InputError: the family cannot learn from the dataset.
        """

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """Refuse a model that cannot be built, before any rows are read.

        Args:
            spec: the pipeline file's `model` part.
            folder: folder of the pipeline file.

        Raises:
            InputError: the user's own class does not exist.
        """

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield a message for each combination of values that the kind does not support.

        Args:
            family: `model.family`.
            parts: parts of the pipeline file by name.
        """
        yield from ()


@cache
def kind_named(name: str) -> ModelKind:
    """Return the kind of model that `name` stands for in `KINDS`.

    Raises:
        InputError: there is no such kind.
    """
    if name not in KINDS:
        raise InputError(
            f"this version of Millrace does not know the model kind {name!r}",
            seen=name,
            valid=", ".join(KINDS),
            hint="if a newer version of Millrace registered the model, update this installation",
        )
    kind: ModelKind = load_object(KINDS[name])()
    return kind


def load_object(name: str) -> Any:
    """Import the module in `module:name`, and return the object of that name."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def all_kinds() -> tuple[ModelKind, ...]:
    """Return every kind, in the order of `KINDS`."""
    return tuple(map(kind_named, KINDS))


EXTRAS: Mapping[str, tuple[str, ...]] = {
    "boosting": ("onnxmltools", "xgboost"),
    "language": ("nncf", "openvino", "openvino_genai", "openvino_tokenizers", "peft"),
    "text": ("transformers",),
}
"""Extras of the pip package that a family may need, and the modules of each."""


def require_extras(family: str, *extras: str) -> None:
    """Refuse a family whose packages are not installed.

    Raises:
        InputError: a package is missing; the hint names the extras to install.
    """
    missing = [name for extra in extras for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the family {family!r} needs packages that are not installed",
            seen=f"no {', '.join(missing)}",
            hint=f"pip install 'millrace[{','.join(extras)}]'; in a checkout, make install",
        )


def kind_of_family(family: str) -> ModelKind:
    """Return the kind that trains a `model.family`; `FIRST_KIND` if none does."""
    return next((kind for kind in all_kinds() if kind.trains(family)), kind_named(FIRST_KIND))


def all_families() -> tuple[str, ...]:
    """Return the families of every kind."""
    return tuple(family for kind in all_kinds() for family in kind.families)


def all_variants() -> tuple[str, ...]:
    """Return the variants of every kind, each once."""
    return tuple(dict.fromkeys(name for kind in all_kinds() for name in kind.variants))


def with_default_variants(values: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline file's values, with `export.candidates` filled in if it is missing.

    The candidates are the default variants of the kind that trains `model.family`. If this kind has
    no default variants, or a value has the wrong type, the values are returned unchanged.
    """
    model, export = values.get("model") or {}, values.get("export") or {}
    if not isinstance(model, Mapping) or not isinstance(export, Mapping):
        return values
    if "candidates" in export or not isinstance(family := model.get("family", ""), str):
        return values
    variants = kind_of_family(family).default_variants
    return {**values, "export": {**export, "candidates": variants}} if variants else values


def find_misfits(family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
    """Yield a message for each value that the family does not support.

    Args:
        family: `model.family`.
        parts: parts of the pipeline file by name. A key with its default value is not reported:
            a resolved pipeline file has every key, also those that the user did not set.
    """
    if not any(kind.trains(family) for kind in all_kinds()):
        return  # an unknown family is another error, which is reported first
    kind = kind_of_family(family)
    for part, keys in _keys_of_others(kind).items():
        for key in keys:
            if is_set(parts[part], key):
                yield f"{part}.{key} is not supported for the family {family}"
    yield from kind.find_misfits(family, parts)
    rollout = getattr(parts.get("rollout"), "kind", "direct")
    if rollout not in kind.rollouts:
        yield f"rollout.kind: {rollout} is not supported for the family {family}"
    for name in getattr(parts["export"], "candidates", ()):
        if name not in kind.variants:
            valid = ", ".join(kind.variants)
            yield f"export.candidates: the family {family} has no variant {name}, only {valid}"


def slo_misfits(family: str, serving: Spec, *, is_streamed: bool) -> Iterator[str]:
    """Yield a message if `serving.slo` is the goal of another kind of model.

    Args:
        family: `model.family`.
        serving: the part `serving`.
        is_streamed: whether models of the family stream their answers.
    """
    slo = getattr(serving, "slo", None)
    if slo is None or slo.is_streamed == is_streamed:
        return
    valid = "ttft_p99_ms and tpot_p99_ms" if is_streamed else "p99_ms"
    yield f"serving.slo of the family {family} is a goal for {valid}"


def is_set(part: Spec, key: str) -> bool:
    """Return whether a key of the pipeline file has a value other than its default."""
    default = type(part).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(part, key) != default)


def _keys_of_others(kind: ModelKind) -> dict[str, list[str]]:
    """Return the keys that other kinds have and `kind` does not, by part."""
    found: dict[str, list[str]] = {}
    for other in all_kinds():
        for part, keys in other.keys.items():
            own = (*kind.keys.get(part, ()), *found.setdefault(part, []))
            found[part] += [key for key in keys if key not in own]
    return found
