"""MLflow's address of a registered version: `models:/NAME@ALIAS` or `models:/NAME/VERSION`."""

import re

SCHEME = "models:"
VALID = "models:/NAME@ALIAS or models:/NAME/VERSION"
_URI = re.compile(r"models:/([^@/]+(?:@[^@/]+|/[1-9][0-9]*))")


def is_model_uri(name: str | None) -> bool:
    """Return whether a name is meant as the address of a registered version."""
    return name is not None and name.startswith(SCHEME)


def version_name(uri: str) -> str | None:
    """Return the NAME@ALIAS or NAME/VERSION of an address; None of what is none."""
    found = _URI.fullmatch(uri)
    return found and found.group(1)


def uri_of(model: str, version: int) -> str:
    """Return the address of one version, which stays the same wherever aliases move."""
    return f"models:/{model}/{version}"
