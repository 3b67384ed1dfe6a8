"""What the chaos tests share with the integration tests: homes, a Prefect server, a Triton."""

from tests.integration.conftest import (
    _environment_as_it_was,
    examples,
    line,
    make,
    new_home,
    prefect_api,
    ray_of_commands,
)

__all__ = [
    "_environment_as_it_was",
    "examples",
    "line",
    "make",
    "new_home",
    "prefect_api",
    "ray_of_commands",
]
