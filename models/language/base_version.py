"""A registered language model as the pretrained model (the base) that training starts from.

A pipeline names the base in `model.pretrained` by its MLflow address. The address is resolved once:
then `model.pretrained` names one version, and `model.revision` is the digest of its checkpoint.
For a model of the Hugging Face hub, `model.revision` is a commit.
"""

from millrace.models.common.errors import InputError
from millrace.models.config.model_uri import VALID, is_model_uri, uri_of, version_name
from millrace.models.config.training_spec import ModelSpec
from millrace.models.language.base_checkpoint import CHECKPOINT_TAG, fetched_checkpoint
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.named_version import in_words, version_named
from millrace.models.registry.version_files import ModelVersion


def pinned_base(spec: ModelSpec, registry: Registry) -> ModelSpec:
    """Return the model spec with a registered base pinned to a version and a digest.

    A spec without a registered base is returned unchanged.

    Raises:
        InputError: there is no such version, the version is not a language model, its run has no
            checkpoint with a digest, or `revision` is not the digest of that checkpoint.
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
            valid=f"a registered causal_lm, as {VALID}",
            hint="name a language model in model.pretrained",
        )
    registry.require_trusted(version)
    digest = version.tags.get(CHECKPOINT_TAG, "")
    if not digest:
        raise InputError(
            f"{in_words(version)} has no checkpoint to start from",
            seen=f"no tag {CHECKPOINT_TAG}",
            valid="a version whose MLflow run has a checkpoint; this release of `millrace run` "
            "stores one",
            hint="run the pipeline of that model again, and name the new version",
        )
    if spec.revision not in (None, digest):
        raise InputError(
            f"the checkpoint of {in_words(version)} does not have the digest in model.revision",
            seen=f"sha256 {digest}",
            valid=f"sha256 {spec.revision}",
            hint="remove model.revision, or name the version that model.revision belongs to",
        )
    pinned = {"pretrained": uri_of(version.model, version.version), "revision": digest}
    return spec.model_copy(update=pinned)


def fetched_base(spec: ModelSpec, registry: Registry) -> ModelSpec:
    """Return the model spec with its pinned base downloaded to a local folder.

    A spec without a registered base is returned unchanged.

    Raises:
        InputError: the base's run no longer has the checkpoint, or the checkpoint has another
            digest.
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
