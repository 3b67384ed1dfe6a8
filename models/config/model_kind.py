"""ModelKind: the kinds of models that there are, and what each says of itself.

The line (flows, tasks, registry, release, batch) asks a kind and never which one it is. What only
a kind knows is in `tasks/kinds/KIND/` and the folders that CONTRIBUTING.md lists; a kind is
registered by one line of `KINDS`. A kind is named there and loaded when it is used: commands that
train nothing import nothing of it.
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
"""The class of each kind by its name, which is the tag `millrace.kind` of its versions."""
FIRST_KIND = next(iter(KINDS))
"""Of a family and of a version that name none."""


class ModelKind(Protocol):
    """One kind of model.

    Attributes:
        name: in `KINDS`.
        families: values of `model.family`.
        keys: keys that not every kind has, by part of the pipeline file.
        variants: names for `export.candidates`.
        default_variants: where the pipeline file has no `export.candidates`; empty for
            `ExportSpec`'s own.
        rollouts: values of `rollout.kind`.
        gates: keys of the pipeline file that refuse a candidate.
        evidence_files: what lies beside the model in a registered version.
        model_folder: folder of the model's files in a version; empty where they lie at its top.
        model_files: their names; none where a version says them.
        triton: the class that tells Triton how to serve it, as `module:Class`; see
            `serving/triton/version_config.py`.
        steps: the function for each step of the line, as `module:function`; see
            `tasks/kinds/steps.py`.
        folders: folders and files of the checkout that may know this kind, beside tests and docs.
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
    steps: Mapping[str, str]
    folders: tuple[str, ...]

    def trains(self, family: str) -> bool:
        """Return whether a `model.family` is of this kind."""
        return family in self.families

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Refuse a dataset that the family cannot learn from.

        Args:
            spec: the pipeline file's `dataset` part, with what its source adds.
            family: `model.family`.

        Raises:
            InputError: they do not fit.
        """

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """Refuse, before anything is read, a model that cannot be built.

        Args:
            spec: the pipeline file's `model` part.
            folder: of the pipeline file.

        Raises:
            InputError: a class of the user's own is not there.
        """

    def find_misfits(self, family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
        """Yield, in words, values of the pipeline file that do not go together.

        Args:
            family: `model.family`.
            parts: parts of the pipeline file by name.
        """
        yield from ()


@cache
def kind_named(name: str) -> ModelKind:
    """Return the kind of that name.

    Raises:
        InputError: there is none.
    """
    if name not in KINDS:
        raise InputError(
            f"there is no kind of model {name!r}",
            seen=name,
            valid=", ".join(KINDS),
            hint="a newer Millrace may have made it; update this one",
        )
    kind: ModelKind = load_object(KINDS[name])()
    return kind


def load_object(name: str) -> Any:
    """Import a module, and return the object `module:name`."""
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
"""The modules of each extra that a family needs."""


def require_extras(family: str, *extras: str) -> None:
    """Refuse a family whose packages are not installed.

    Raises:
        InputError: it names the extras to install.
    """
    missing = [name for extra in extras for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise InputError(
            f"the family {family!r} needs packages that are not installed",
            seen=f"no {', '.join(missing)}",
            hint=f"pip install 'millrace[{','.join(extras)}]'; in a checkout, make install",
        )


def kind_of_family(family: str) -> ModelKind:
    """Return the kind that trains a `model.family`; the first one if none does."""
    return next((kind for kind in all_kinds() if kind.trains(family)), kind_named(FIRST_KIND))


def all_families() -> tuple[str, ...]:
    """Return the families of every kind."""
    return tuple(family for kind in all_kinds() for family in kind.families)


def all_variants() -> tuple[str, ...]:
    """Return the variants of every kind, each once."""
    return tuple(dict.fromkeys(name for kind in all_kinds() for name in kind.variants))


def with_default_variants(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a pipeline file with its kind's variants where it names none."""
    model, export = values.get("model") or {}, values.get("export") or {}
    if not isinstance(model, Mapping) or not isinstance(export, Mapping):
        return values
    if "candidates" in export or not isinstance(family := model.get("family", ""), str):
        return values
    variants = kind_of_family(family).default_variants
    return {**values, "export": {**export, "candidates": variants}} if variants else values


def find_misfits(family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
    """Yield what does not go with the family, in words.

    Args:
        family: `model.family`.
        parts: parts of the pipeline file by name. A key with its default value says nothing: a
            pipeline file that was resolved has them all.
    """
    if not any(kind.trains(family) for kind in all_kinds()):
        return  # there is none of this name, which is said first
    kind = kind_of_family(family)
    for part, keys in _keys_of_others(kind).items():
        for key in keys:
            if is_set(parts[part], key):
                yield f"{part}.{key} does not go with the family {family}"
    yield from kind.find_misfits(family, parts)
    rollout = getattr(parts.get("rollout"), "kind", "direct")
    if rollout not in kind.rollouts:
        yield f"rollout.kind: {rollout} is not supported for the family {family}"
    for name in getattr(parts["export"], "candidates", ()):
        if name not in kind.variants:
            valid = ", ".join(kind.variants)
            yield f"export.candidates: the family {family} has no variant {name}, it has {valid}"


def is_set(part: Spec, key: str) -> bool:
    """Return whether a key of the pipeline file has another value than its default."""
    default = type(part).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(part, key) != default)


def _keys_of_others(kind: ModelKind) -> dict[str, list[str]]:
    """Return the keys that other kinds have and this one has not, by part."""
    found: dict[str, list[str]] = {}
    for other in all_kinds():
        for part, keys in other.keys.items():
            own = (*kind.keys.get(part, ()), *found.setdefault(part, []))
            found[part] += [key for key in keys if key not in own]
    return found
