"""Which folders of the checkout are packages of the distribution, and by which names.

`flows/`, `tasks/`, … are installed and imported as `millrace.flows`, `millrace.tasks`, … so that
a user's own `models/` or `tasks/` never stands in their way. Everything else is in pyproject.toml.
"""

from setuptools import find_packages, setup

NAME = "millrace"
CODE = ("flows", "tasks", "models", "export", "serving")
packages = find_packages(include=[pattern for name in CODE for pattern in (name, f"{name}.*")])

setup(
    packages=[f"{NAME}.{package}" for package in (*packages, "infra", "examples")],
    package_dir={f"{NAME}.{name}": name for name in (*CODE, "infra", "examples")},
)
