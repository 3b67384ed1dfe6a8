"""What the benchmarks of language models are measured on: a model, and a Triton that serves it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.crowd import Passages
from bench.language_model import Shape, Written, written
from bench.server import Bench, own_server
from millrace.models.config.language_spec import GenerationSpec
from millrace.serving.triton.language.language_config import openvino_config
from millrace.serving.triton.language.stream_client import LanguageClient
from millrace.serving.triton.model_config import latest, to_text


@dataclass(frozen=True)
class Stand:
    """A model and a server.

    Attributes:
        made: the model.
        bench: the server.
        client: asks it.
    """

    made: Written
    bench: Bench
    client: LanguageClient

    @contextmanager
    def serving(
        self, name: str, generation: GenerationSpec, folder: Path | None = None
    ) -> Iterator[str]:
        """Serve a form of the model by a name; with its draft if that is asked for."""
        target = self.bench.repository.root / name
        target.mkdir()
        whole = self.made.drafted if generation.draft else self.made.folder
        (target / "1").symlink_to(folder or whole)
        config = openvino_config(name, generation, version_policy=latest())
        (target / "config.pbtxt").write_text(to_text(config))
        self.bench.client.load(name)
        try:
            yield name
        finally:
            self.bench.client.unload(name)

    def passages(self, characters: int, prefix: str = "") -> Passages:
        """Return parts of the model's text: the same ones each time that this is called."""
        return Passages(self.made.text[len(prefix) :], characters, prefix)


@contextmanager
def own_stand(shape: Shape) -> Iterator[Stand]:
    """Make a model of random weights, and start a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        own_server() as bench,
        LanguageClient(bench.client.endpoint) as client,
    ):
        yield Stand(written(Path(folder), shape), bench, client)
