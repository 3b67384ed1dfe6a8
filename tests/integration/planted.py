"""Versions put into a real MLflow registry by hand, good ones and every kind of bad one.

They bypass `Registry.register`, which would not let most of them in: a registry is written to by
others too.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

from millrace.export.onnx.graph_certificate import GraphCertificate, GraphStage
from millrace.models.common.digest import digest_of_all
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import FEATURES
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import DIGEST_TAG, EVIDENCE_TAG

WIDTH = 4
LABELS = ("x", "y", "z")
ENCODING = Encoding((Feature("v", "vector", width=WIDTH),), "t", LABELS)
GOLDEN = np.random.default_rng(1).normal(size=(8, WIDTH)).astype(np.float32)
FLOAT = TensorProto.FLOAT
SEED = 3
"""Of a bad candidate's weights; its champion's is 0."""

DATASET = DatasetSpec(source="rows.jsonl", target="t")
Nodes = Sequence[onnx.NodeProto]


@dataclass(frozen=True)
class Version:
    """What a version is made of.

    Attributes:
        model: bytes of `model.onnx`.
        answers: what the golden batch is said to be answered with.
        metric: what the certificate says of the test split.
        passed: whether the certificate says that it passed.
        pipeline: keys of the pipeline file beside its name and dataset.
        tags: tags of the version.
        machine_kind: of the machine that its variant is said to have been chosen on.
    """

    model: bytes
    answers: np.ndarray
    metric: float = 1.0
    passed: bool = True
    pipeline: Mapping[str, Any] | None = None
    tags: Mapping[str, str] | None = None
    machine_kind: str = ""

    def certificate(self, name: str) -> GraphCertificate:
        stage = GraphStage("onnx-fp32", 1e-6, 1e-6, self.metric, 0.0)
        return GraphCertificate(
            model=name,
            candidate="onnx-fp32",
            digest=hashlib.sha256(self.model).hexdigest(),
            dataset=name,
            dataset_version=0,
            dataset_digest="d",
            test_rows=10,
            golden_rows=len(GOLDEN),
            metric_name="accuracy",
            max_metric_loss=0.01,
            stages=(replace(stage, name="pytorch"), stage),
            passed=self.passed,
            machine=f"a machine with {self.machine_kind}" if self.machine_kind else "",
            machine_kind=self.machine_kind,
        )


def ingest_rows(installation: Installation, name: str, rows: int = 200) -> None:
    """Make the data set, whose true classes are what the version of seed 0 answers."""
    features = np.random.default_rng(7).normal(size=(rows, WIDTH)).astype(np.float32)
    target = [LABELS[best] for best in softmax(features @ weights_of(0)).argmax(axis=1)]
    lines = [json.dumps({"v": v.tolist(), "t": t}) for v, t in zip(features, target, strict=True)]
    (installation.home / "rows.jsonl").write_text("\n".join(lines))
    ingest(Pipeline(name=name, dataset=DATASET).with_folder(installation.home), installation)


def good(seed: int = 0, **options: Any) -> Version:
    """A softmax of a linear layer, certified truly."""
    weights = weights_of(seed)
    return Version(classifier(weights), softmax(GOLDEN @ weights), **options)


def made_by(*nodes: Any, **extra: np.ndarray) -> Version:
    """A version that makes "seen" out of the features in another way."""
    return replace(good(SEED), model=classifier(weights_of(SEED), before=nodes, extra=extra))


def busy(size: int, times: int, depends: bool) -> Version:
    """A version that multiplies large matrices: before it answers, or before it is loaded."""
    fill = helper.make_node("ConstantOfShape", ["shape"], ["m0"])
    if depends:
        start = [
            helper.make_node("ReduceSum", [FEATURES], ["total"], keepdims=0),
            helper.make_node("Mul", ["m0", "total"], ["p0"]),
        ]
    else:
        start = [helper.make_node("Identity", ["m0"], ["p0"])]
    chain = [helper.make_node("MatMul", [f"p{i}", "m0"], [f"p{i + 1}"]) for i in range(times)]
    end = [
        helper.make_node("ReduceSum", [f"p{times}"], ["nothing"], keepdims=0),
        helper.make_node("Add", [FEATURES, "nothing"], ["seen"]),
    ]
    return made_by(fill, *start, *chain, *end, shape=np.array([size, size]))


def weights_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(WIDTH, len(LABELS))).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def classifier(
    weights: np.ndarray,
    *,
    before: Nodes = (),
    features: str = "features",
    probabilities: str = "probabilities",
    extra: Mapping[str, np.ndarray] | None = None,
    elem_type: int = FLOAT,
) -> bytes:
    """A linear layer and softmax; `before` may make "seen" from the features."""
    nodes = [
        *(before or [helper.make_node("Identity", [features], ["seen"])]),
        helper.make_node("MatMul", ["seen", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], [probabilities], axis=1),
    ]
    return model(
        nodes,
        (features, elem_type, ["batch", weights.shape[0]]),
        (probabilities, elem_type, ["batch", weights.shape[1]]),
        {"w": weights, **(extra or {})},
    )


def model(
    nodes: Nodes,
    given: tuple[str, int, list[Any]],
    answer: tuple[str, int, list[Any]],
    weights: Mapping[str, np.ndarray],
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info(*answer)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(made.SerializeToString())


@dataclass(frozen=True)
class Planted:
    """A version in the registry.

    Attributes:
        name: registered model.
        number: its version.
        folder: where the artifact store keeps its files.
    """

    name: str
    number: int
    folder: Path


def plant(
    installation: Installation, name: str, version: Version, *, signed: bool = True
) -> Planted:
    """Write a version's files into a run's artifacts, register them, and sign what is there."""
    store = client(installation.tracking_uri)
    experiment = store.get_experiment_by_name(name)
    location = f"{installation.artifacts.as_uri()}/{name}"
    identity = experiment.experiment_id if experiment else store.create_experiment(name, location)
    run = store.create_run(identity, tags={"mlflow.user": "ann"}).info
    folder = installation.artifacts / name / run.run_id / "artifacts" / "model"
    extra = folder / "extra_files"
    extra.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(version.model)
    (extra / "encoding.json").write_text(ENCODING.to_json())
    (extra / "certificate.json").write_text(json.dumps(asdict(version.certificate(name))))
    np.savez(extra / "golden.npz", features=GOLDEN, answers=version.answers)
    keys = {"name": name, "dataset": DATASET.model_dump(mode="json", exclude_unset=True)}
    (extra / "pipeline.yaml").write_text(yaml.safe_dump({**keys, **(version.pipeline or {})}))
    if not [m for m in store.search_registered_models() if m.name == name]:
        store.create_registered_model(name)
    made = store.create_model_version(
        name,
        folder.as_uri(),
        run_id=run.run_id,
        tags={
            DIGEST_TAG: version.certificate(name).digest,
            **(version.tags or {}),
        },
    )
    planted = Planted(name, int(made.version), folder)
    if signed:
        seal(installation, planted)
    return planted


def seal(installation: Installation, planted: Planted) -> None:
    """Sign a version as it lies there, whatever is wrong with it: its evidence is as it is now."""
    registry, extra = registry_of(installation), planted.folder / "extra_files"
    version = registry.version(planted.name, planted.number)
    files = {each: extra / each for each in version.kind.evidence_files if (extra / each).is_file()}
    registry.set_tags(version, {EVIDENCE_TAG: digest_of_all(files)})
    registry.sign(registry.version(planted.name, planted.number))
