"""Reads from a flow's source what Prefect stores of the flow in a deployment.

Importing a flow imports Ray, MLflow and others. That takes seconds, and the deployments' process
would keep 120 MB for ever, though it starts every run in another process.
"""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect import Flow


def read_flow_outline(entrypoint: str) -> "Flow[..., Any] | None":
    """Return a flow with the name, version, description and parameters of an entrypoint's flow.

    It is not to be run: the names in its body are not defined.

    Args:
        entrypoint: the flow's dotted path.

    Returns:
        None if its source alone does not tell: the entrypoint names a file, the function has
        another decorator, or a parameter's type or default is imported.
    """
    from prefect import Flow
    from prefect.flows import load_flow_arguments_from_entrypoint

    module, _, name = entrypoint.rpartition(".")
    spec = None if ":" in entrypoint else find_spec(module)
    if spec is None or spec.origin is None:
        return None
    source = ast.parse(Path(spec.origin).read_bytes())
    function = _find_function(source, name)
    if function is None or _list_decorators(function) != ["flow"]:
        return None
    function.decorator_list, function.returns = [], None
    source.body = [*filter(_is_constant, source.body), function]
    namespace: dict[str, Any] = {"__name__": module}
    try:
        exec(compile(source, spec.origin, "exec"), namespace)  # noqa: S102 - what an import runs
    except NameError:
        return None
    said = load_flow_arguments_from_entrypoint(entrypoint, {"name", "version", "description"})
    return Flow(namespace[name], **said)


def _find_function(source: ast.Module, name: str) -> ast.FunctionDef | None:
    functions = (node for node in source.body if isinstance(node, ast.FunctionDef))
    return next((node for node in functions if node.name == name), None)


def _list_decorators(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's decorators, with and without arguments."""
    plain = (each.func if isinstance(each, ast.Call) else each for each in function.decorator_list)
    return [ast.unparse(each) for each in plain]


def _is_constant(node: ast.stmt) -> bool:
    """Return whether a statement gives a name to a constant, as a default may use."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
