"""Restricts what the MLflow server of `up` opens and reaches, whatever its users request.

Artifacts: whoever may create an experiment names the location of its artifacts. MLflow reads and
writes there as the user of its server, follows links, and opens object stores with that user's
keys. So an experiment in a folder that contains a link can reveal and change every file of that
user. Therefore this server opens artifacts in one folder only.

Webhooks: whoever may create a webhook names its address, and MLflow's webhook test shows the
response. MLflow itself sends to public https addresses only, unless two variables let it send
everywhere. Millrace's receiver is on loopback, so its exact address is an exception. The exception
is checked both where an address is accepted and where a webhook is sent, because an earlier server
may have accepted another address and a redirect may lead to one.

Importing this module imports MLflow's server, which reads its environment at import.
"""

from pathlib import Path
from typing import Any, NoReturn

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from mlflow.store.artifact import artifact_repository_registry as registry
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.model_registry import sqlalchemy_store
from mlflow.utils import validation
from mlflow.webhooks import delivery
from requests import Session
from requests.adapters import HTTPAdapter

LOCAL_SCHEMES = ("", "file")
INDIRECT_SCHEMES = ("runs", "models")
"""Schemes of addresses that MLflow resolves to another address and then opens in the same way."""


def restrict_artifacts(root: Path) -> None:
    """Let this process open only artifacts below a folder."""
    real_root = root.resolve()

    def open_local(artifact_uri: str, *args: Any, **options: Any) -> ArtifactRepository:
        return _RestrictedArtifacts(real_root, artifact_uri, *args, **options)

    for scheme in [*registry.get_registered_artifact_repositories()]:
        if scheme not in INDIRECT_SCHEMES:
            registry._artifact_repository_registry.register(  # type: ignore[no-untyped-call]
                scheme, open_local if scheme in LOCAL_SCHEMES else _refuse
            )


class _RestrictedArtifacts(LocalArtifactRepository):
    """Artifacts in a folder that is below the root after all links are resolved."""

    def __init__(self, root: Path, artifact_uri: str, *args: Any, **options: Any) -> None:
        super().__init__(artifact_uri, *args, **options)
        real = Path(self._artifact_dir).resolve()
        if not real.is_relative_to(root):
            _refuse()
        self._artifact_dir = str(real)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise MlflowException(
        "This server opens only artifacts in its own folder.",
        error_code=PERMISSION_DENIED,
    )


def restrict_webhooks(receiver: str) -> None:
    """Let this process send webhooks to one address that is not public.

    Args:
        receiver: the full URL of the receiver.
    """
    validate, create_session = validation._validate_webhook_url, delivery._create_webhook_session

    def validate_unless_ours(url: str) -> None:
        if url != receiver:
            validate(url)

    def create_session_for_ours() -> Session:
        session = create_session()
        # MLflow's adapter ends every connection to an address that is not public, also after a
        # redirect.
        retries = session.get_adapter(receiver).max_retries  # type: ignore[attr-defined]
        session.mount(receiver, HTTPAdapter(max_retries=retries))
        return session

    for module in (sqlalchemy_store, delivery):
        if module._validate_webhook_url is not validate:
            raise RuntimeError(
                f"{module.__name__} does not validate webhooks by MLflow's `_validate_webhook_url`"
            )
        module._validate_webhook_url = validate_unless_ours  # type: ignore[attr-defined]
    delivery._create_webhook_session = create_session_for_ours
