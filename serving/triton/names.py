"""Names in the model repository: of models, and of what Millrace makes beside them for a while."""

ARMS = ".arms"
"""Ends the name of the model that has both versions of a rollout loaded."""
TRIAL = ".trial-"
"""Stands in the name of a model that is loaded only to be tried; no client knows the name."""


def is_made_here(name: str) -> bool:
    """Whether it is a name under which versions are tried or split, and not that of a model."""
    return TRIAL in name or name.endswith(ARMS)


def owner_of(name: str) -> str:
    """Return the model that a name belongs to: the name itself where it is a model's."""
    return name.partition(TRIAL)[0].removesuffix(ARMS)
