"""A registered language model as the one that training starts from.

A pipeline names it by MLflow's address. That is looked up once: from then on it is the address of
one version, and `model.revision` is the digest of its checkpoint, as it is a commit of the hub's.
"""

from millrace.models.common.errors import InputError
from millrace.models.config.model_uri import VALID, is_model_uri, uri_of, version_name
from millrace.models.config.training_spec import ModelSpec
from millrace.models.language.base_checkpoint import CHECKPOINT_TAG, fetched_checkpoint
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.named_version import in_words, version_named
from millrace.models.registry.version_files import ModelVersion


def pinned_base(spec: ModelSpec, registry: Registry) -> ModelSpec:
    """Return the model with its base pinned to a version and a digest; others as they are.

    Raises:
        InputError: there is no such version, it is not a language model, its run keeps no
            checkpoint with a digest, or `revision` is another digest.
        TransientError: MLflow cannot be reached.
    """
    if not is_model_uri(spec.pretrained):
        return spec
    name = str(spec.pretrained)
    version = _version(name, registry)
    if version.kind.name != "language":
        raise InputError(
            f"model.pretrained {name!r} is not a language model",
            seen=in_words(version),
            valid=f"a causal_lm that was registered, as {VALID}",
            hint="name another model",
        )
    registry.require_trusted(version)
    digest = version.tags.get(CHECKPOINT_TAG, "")
    if not digest:
        raise InputError(
            f"{in_words(version)} has no checkpoint to start from",
            seen=f"no tag {CHECKPOINT_TAG}",
            valid="a version whose run keeps its checkpoint, as `millrace run` registers them now",
            hint="run the pipeline of that model again, and name the new version",
        )
    if spec.revision not in (None, digest):
        raise InputError(
            f"the checkpoint of {in_words(version)} is not the one of model.revision",
            seen=f"sha256 {digest}",
            valid=f"sha256 {spec.revision}",
            hint="leave model.revision out, or name the version that it is of",
        )
    pinned = {"pretrained": uri_of(version.model, version.version), "revision": digest}
    return spec.model_copy(update=pinned)


def fetched_base(spec: ModelSpec, registry: Registry) -> ModelSpec:
    """Return a model whose base is pinned with that base as a folder of this machine.

    Raises:
        InputError: its run keeps no checkpoint any more, or another one.
        TransientError: MLflow or its artifact store does not answer.
    """
    if not is_model_uri(spec.pretrained):
        return spec
    version = _version(str(spec.pretrained), registry)
    registry.require_trusted(version)
    folder = fetched_checkpoint(version, str(spec.revision), registry.tracking_uri, registry.cache)
    return spec.model_copy(update={"pretrained": str(folder), "revision": None})


def _version(uri: str, registry: Registry) -> ModelVersion:
    return version_named(version_name(uri) or "", registry, valid=VALID)
