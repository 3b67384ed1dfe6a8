"""How a pipeline file names a registered version.

The version is written `NAME`, `NAME@ALIAS` or `NAME/VERSION`. Keys that also accept a folder or a
name on the Hugging Face hub need MLflow's URI: `models:/NAME@ALIAS` or `models:/NAME/VERSION`.
"""

import re
from typing import Annotated

from pydantic import Field

SCHEME = "models:"
VALID = "models:/NAME@ALIAS or models:/NAME/VERSION"
_URI = re.compile(r"models:/([^@/]+(?:@[^@/]+|/[1-9][0-9]*))")
VersionName = Annotated[str, Field(pattern=r"^[^@/]+(@[^@/]+|/[1-9][0-9]*)?$")]
"""A registered model: NAME for its champion, NAME@ALIAS or NAME/VERSION."""


def model_of(name: str) -> str:
    """Return the name of the registered model in a `VersionName`."""
    return name.partition("/")[0].partition("@")[0]


def is_model_uri(name: str | None) -> bool:
    """Return whether a name is meant as the URI of a registered version."""
    return name is not None and name.startswith(SCHEME)


def version_name(uri: str) -> str | None:
    """Return the NAME@ALIAS or NAME/VERSION of a URI; None if it is malformed."""
    match = _URI.fullmatch(uri)
    return match and match.group(1)


def uri_of(model: str, version: int) -> str:
    """Return the URI of one version, which does not depend on aliases."""
    return f"models:/{model}/{version}"
