"""What is promised for the models that are live, and what their machine costs."""

import time
from collections.abc import Callable
from typing import NamedTuple

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import derive_state
from millrace.serving.triton.client_load import Terms
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.progress import log
from millrace.tasks.release import MlflowRegistry

RETRY_SECONDS = 300.0
"""After how long a version that could not be read is tried again."""


class _Read(NamedTuple):
    version: int
    terms: Terms
    until: float


class LiveTerms:
    """The terms of each live version; a version is read once.

    Args:
        installation: where the registry and the releases are.
        clock: seconds.
    """

    def __init__(
        self, installation: Installation, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known, self._clock = MlflowRegistry(installation), clock
        self._ledger = ledger_of(installation)
        self._read: dict[str, _Read] = {}

    def by_model(self) -> dict[str, Terms]:
        """Return the terms of the live versions, by model; empty ones where they are not known.

        Raises:
            TransientError: the table of releases cannot be read.
        """
        found = dict[str, Terms]()
        for model, releases in self._ledger.by_model().items():
            version = derive_state(releases).live_version
            if version is not None:
                found[model] = self._terms(model, version)
        return found

    def _terms(self, model: str, version: int) -> Terms:
        read = self._read.get(model)
        if read is None or read.version != version or self._clock() >= read.until:
            read = self._read[model] = self._read_version(model, version)
        return read.terms

    def _read_version(self, model: str, version: int) -> _Read:
        try:
            found = self._known.registry.version(model, version)
            pipeline = pipeline_of(self._known.package(found))
        except MillraceError as error:  # nothing fails for the goal of another model
            log.warning("the goal of %s version %d is not known: %s", model, version, error.what)
            return _Read(version, Terms(), self._clock() + RETRY_SECONDS)
        terms = Terms(pipeline.serving.slo, pipeline.batch.price_per_hour)
        return _Read(version, terms, float("inf"))
