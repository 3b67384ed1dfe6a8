"""A registry of plain files, for tests of releases without MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort

from millrace.models.common.digest import digest_of, digest_of_all
from millrace.models.common.errors import WorkError
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.release.golden_batch import GoldenBatch
from millrace.serving.release.release_state import DesiredVersion, Release
from millrace.serving.release.version_check import VersionCheck
from millrace.serving.release.version_tags import Tags
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.version_folder import Artifact, Draft

ROWS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)


@dataclass
class FileRegistry:
    """What each version consists of, who is champion, and what was written back.

    Attributes:
        folder: takes the files of versions.
        champions: version of each model.
        refuses: why a version may not go live, by model and version.
        written: tags by model and version.
        told: the events, in order.
    """

    folder: Path
    champions: dict[str, int] = field(default_factory=dict)
    refuses: dict[tuple[str, int], str] = field(default_factory=dict)
    written: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)
    told: list[Release] = field(default_factory=list)
    artifacts: dict[tuple[str, int], Artifact] = field(default_factory=dict)
    golden: dict[tuple[str, int], VersionCheck] = field(default_factory=dict)
    rollouts: dict[tuple[str, int], RolloutSpec] = field(default_factory=dict)

    def register(
        self,
        model: str,
        version: int,
        proto: bytes,
        inputs: Mapping[str, np.ndarray] | None = None,
        latency_slo_ms: float | None = None,
        **serving: object,
    ) -> Path:
        """Keep a version, with ONNX Runtime's answers as its certified ones."""
        path = self.folder / f"{model}-{version}.onnx"
        path.write_bytes(proto)
        spec = ServingSpec.model_validate(serving)
        self.artifacts[model, version] = artifact_of_graph(path, digest_of(path), serving=spec)
        given = {"x": ROWS} if inputs is None else dict(inputs)
        answers = answers_of(path, given)
        self.golden[model, version] = GoldenBatch(given, given, answers, 0.0, latency_slo_ms)
        return path

    def register_language(
        self,
        model: str,
        version: int,
        files: Path,
        expected: VersionCheck,
        draft: Path | None = None,
        **serving: object,
    ) -> None:
        """Keep a version of a language model: a folder, what it must answer, and what drafts."""
        named = {file.name: file for file in files.iterdir()}
        if draft is not None:
            serving["generation"] = {"draft": "small/1", "num_assistant_tokens": 3}
        spec = ServingSpec.model_validate(serving)
        small = {file.name: file for file in draft.iterdir()} if draft else {}
        drafts = Draft("small/1", small, digest_of_all(small)) if draft else None
        self.artifacts[model, version] = Artifact(
            named, digest_of_all(named), "language", serving=spec, draft=drafts
        )
        self.golden[model, version] = expected

    def desired_versions(self, model: str | None = None) -> Mapping[str, DesiredVersion]:
        return {
            name: DesiredVersion(
                version, self.artifacts[name, version].sha256, self.tags(name, version)
            )
            for name, version in self.champions.items()
            if model in (None, name)
        }

    def describe_promotion(self, model: str) -> str:
        return f"give a version of {model} the alias champion"

    def tags(self, model: str, version: int) -> Mapping[str, str]:
        return self.written.get((model, version), {})

    def fetch(self, model: str, version: int) -> Artifact:
        return self.artifacts[model, version]

    def verify(self, model: str, version: int, previous: int | None) -> None:
        if (reason := self.refuses.get((model, version))) is not None:
            raise WorkError(reason)

    def version_check(self, model: str, version: int) -> VersionCheck:
        return self.golden[model, version]

    def rollout(self, model: str, version: int) -> RolloutSpec:
        return self.rollouts.get((model, version), RolloutSpec())

    def write_tags(self, model: str, version: int, tags: Tags) -> None:
        known = {**self.written.get((model, version), {}), **tags}
        self.written[model, version] = {k: v for k, v in known.items() if v is not None}

    def report(self, release: Release) -> None:
        self.told.append(release)


def answers_of(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return ONNX Runtime's answers that are numbers; none for a file that it cannot run."""
    try:
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        answers = dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception:
        return {}
    return {name: answer for name, answer in answers.items() if answer.dtype.kind == "f"}
