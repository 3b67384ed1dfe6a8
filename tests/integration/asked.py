"""A real registry and a real Triton, and somebody who asks the champion all the while."""

import threading
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from millrace.models.common.installation import Installation
from millrace.models.inference.features import FEATURES
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.reconcile import reconcile
from millrace.serving.release.release_state import Release
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from millrace.tasks.release import MlflowRegistry
from tests.integration.planted import GOLDEN, Planted, softmax, weights_of

PAUSE_SECONDS = 0.002
"""Between two questions, so that they leave a core to the release."""


@dataclass
class Line:
    """A registry, a server, and the champion that serves."""

    installation: Installation
    client: TritonClient

    def release(self, *models: str) -> tuple[Outcome, ...]:
        """Release these models, or all."""
        return self._released(models, Request("a test"))

    def release_again(self, *models: str) -> tuple[Outcome, ...]:
        """Release as a person does who asks for it: what was refused is tried again."""
        return self._released(models, Request("a test", retry_refused_before=datetime.now(UTC)))

    def _released(self, models: tuple[str, ...], request: Request) -> tuple[Outcome, ...]:
        repository = Repository(self.installation.model_repository, self.installation.staging)
        return reconcile(
            MlflowRegistry(self.installation),
            ledger_of(self.installation),
            repository,
            [self.client.endpoint],
            request,
            models or None,
        )

    def releases(self, name: str) -> tuple[Release, ...]:
        return ledger_of(self.installation).releases(name)

    def promote(self, planted: Planted) -> None:
        store = client(self.installation.tracking_uri)
        store.set_registered_model_alias(planted.name, CHAMPION, str(planted.number))

    def tags(self, planted: Planted) -> dict[str, str]:
        store = client(self.installation.tracking_uri)
        return dict(store.get_model_version(planted.name, str(planted.number)).tags)


class Asking:
    """Asks for a model's answer all the while, and keeps what was wrong.

    Args:
        line: where to ask.
        name: the model.
        seeds: of the weights of the versions that may answer.
    """

    def __init__(self, line: Line, name: str, *seeds: int) -> None:
        self.line, self.name, self.asked = line, name, 0
        self.wrong: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._allowed = [softmax(GOLDEN[:1] @ weights_of(seed)) for seed in seeds]

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                answers = self.line.client.predict(self.name, {FEATURES: GOLDEN[:1]})
                got = answers["probabilities"]
                if not any(np.allclose(got, each, atol=1e-5) for each in self._allowed):
                    self.wrong.append(got)
            except Exception as error:
                self.wrong.append(error)
            self.asked += 1
            self._stop.wait(PAUSE_SECONDS)

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def nothing_of_a_trial_is_left(line: Line) -> bool:
    loaded = [e.name for e in line.client.index() if "trial" in e.name and e.state == "READY"]
    return not loaded and not list(line.installation.model_repository.glob("*trial*"))
