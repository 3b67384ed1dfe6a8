"""Loads the user's own code from beside the pipeline file: `module:attribute`.

The folder becomes the `__path__` of a private package, so a file called `models.py` or `flows.py`
never shadows an installed package or a module of Millrace. A module may import its siblings by
`from . import helpers` or, at its top, by plain `import helpers`; an installed package of the same
name takes precedence.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import cloudpickle  # type: ignore[import-untyped,unused-ignore]

from millrace.models.common.errors import InputError, nearest

PACKAGE = "millrace_user_"
"""What the names of the private packages begin with."""


def load(reference: str, folder: Path) -> object:
    """Import a module of `folder` afresh, and return the attribute that `module:attribute` names.

    cloudpickle pickles the module by value, so that Ray's workers, which do not see the folder,
    can run it. A sibling module that is imported inside a function is not pickled, so siblings
    must be imported at the top.

    Args:
        reference: the module's dotted name, a colon and an attribute, e.g. `rows:read`.
        folder: the folder in which the module is looked up.

    Raises:
        InputError: the reference is malformed, the module or attribute does not exist, or the
            module fails to import.
    """
    module_name, attribute = _split_reference(reference)
    module_path(reference, folder)
    module = _import_module(module_name, folder.resolve())
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        raise InputError(
            f"{module.__file__} has no attribute {attribute!r}",
            seen=reference,
            valid=", ".join(sorted(public)) or None,
            hint=nearest(attribute, public),
        )
    return getattr(module, attribute)


def _split_reference(reference: str) -> tuple[str, str]:
    """Split `module:attribute` in two."""
    module, _, attribute = reference.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(
            f"{reference!r} is not a reference to your own code",
            valid="module:attribute, e.g. rows:read for the function read in rows.py",
            hint="name the module without .py, relative to the pipeline file's folder",
        )
    return module, attribute


def module_path(reference: str, folder: Path) -> Path:
    """Return the file of the reference's module.

    Raises:
        InputError: the reference is malformed, or there is no such file in the folder.
    """
    module, attribute = _split_reference(reference)
    stem = folder.resolve().joinpath(*module.split("."))
    for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
        if path.is_file():
            return path
    known = sorted(path.stem for path in folder.glob("*.py"))
    raise InputError(
        f"there is no module {module!r} in {folder.resolve()}",
        seen=reference,
        valid=", ".join(f"{name}:{attribute}" for name in known) or "the folder holds no .py file",
        hint=nearest(module, known) or f"looked for {stem}.py",
    )


def _import_module(module_name: str, folder: Path) -> ModuleType:
    package = _make_package(folder)
    try:
        with _siblings_importable(folder):
            return importlib.import_module(f"{package.__name__}.{module_name}")
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"your module {module_name!r} cannot be imported",
            seen=f"{type(error).__name__}: {error}{describe_location(error, folder)}",
            hint=f"fix the module; `python -c 'import {module_name}'` in {folder} shows the same "
            "error",
        ) from error


def describe_location(error: BaseException, folder: Path) -> str:
    """Return ` (file.py, line N)`: the deepest line of the user's own code in a traceback."""
    location, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(folder.resolve()):
            location = f" ({path.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return location


def _make_package(folder: Path) -> ModuleType:
    """Make a package of the folder, under a unique name, and forget modules imported before."""
    name = f"{PACKAGE}{sha256(str(folder).encode()).hexdigest()[:12]}"
    for known in [known for known in sys.modules if known.partition(".")[0] == name]:
        del sys.modules[known]
    package = ModuleType(name, f"User code in {folder}.")
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    cloudpickle.register_pickle_by_value(package)
    if "ray" in sys.modules:
        pickle_by_value_for_ray()
    return package


def pickle_by_value_for_ray() -> None:
    """Let Ray pickle all of the user's code by value, what was loaded before Ray included.

    Ray's own copy of cloudpickle has its own registry. Whoever connects to Ray calls this: a
    command without Ray loads code too, and Ray takes a third of a second to import.
    """
    from ray import cloudpickle as ray_cloudpickle

    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE) and "." not in name:
            ray_cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


@contextmanager
def _siblings_importable(folder: Path) -> Iterator[None]:
    """Let `import helpers` find a sibling, after all installed packages, while the block runs.

    Siblings are removed from `sys.modules` again: two folders may each have a `helpers.py`, and
    cloudpickle pickles by value what it cannot find in `sys.modules`. No bytecode is written that
    could go stale.
    """
    before, write_bytecode = set(sys.modules), sys.dont_write_bytecode
    sys.path.append(str(folder))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = write_bytecode
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            is_sibling = file is not None and Path(file).resolve().is_relative_to(folder)
            if is_sibling and not name.startswith(PACKAGE):
                del sys.modules[name]
