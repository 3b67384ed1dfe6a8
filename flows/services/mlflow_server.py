"""MLflow's server behind the guard: `python -m millrace.flows.services.mlflow_server`.

`mlflow server` takes the address of the database as an argument, which every user of the machine
can read in /proc, and starts a second process of 250 MB. It passes its options to that process as
environment variables; this module sets the same variables itself.
"""

import logging
import os
import sys
from pathlib import Path

from starlette.types import ASGIApp

from millrace.flows.console import exit_on_error
from millrace.flows.services.logins import MlflowLogin, load_mlflow_login
from millrace.flows.services.service_specs import webhook_url
from millrace.flows.settings import LOOPBACK, Settings, load
from millrace.models.common.errors import WorkError
from millrace.models.common.printable import guard_logging
from millrace.models.registry.mlflow_database import prepare_database
from millrace.serving.http_server import run_server
from millrace.serving.origin_check import OriginCheck, OriginPolicy, loopback_hosts

SIGN_UP_FORM = "/api/2.0/mlflow/users/create-ui"
"""MLflow's only form; it has its own token against forgery."""
ASSISTANT = ("/ajax-api/3.0/mlflow/assistant", "/api/3.0/mlflow/assistant")
"""MLflow's own assistant. Whoever reaches the assistant may choose its language model, wherever
that runs, and have it execute any command as the user of this server."""
NO_PAGES = ("/api", "/ajax-api", "/graphql", "/get-artifact", "/model-versions", "/v1", "/gateway")


def server_variables(settings: Settings) -> dict[str, str]:
    """Return the environment variables that `mlflow server` derives from its options.

    The server has one worker, because its SQLite accepts one writer at a time and each worker needs
    300 MB.
    """
    hosts = sorted(loopback_hosts(settings.mlflow_port))
    artifacts = str(settings.home / "artifacts")
    database = settings.mlflow_tracking_uri or settings.mlflow_database()
    return {
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": artifacts,
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # MLflow's default also allows every private address.
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{host}" for host in hosts),
        # Set only in the server's process, because a client in the process uses this address too.
        "MLFLOW_TRACKING_URI": database,
    }


def request_policy(port: int) -> OriginPolicy:
    """Return the policy for the requests that this server accepts.

    MLflow 3.17 itself checks the header Host. It checks the header Origin only below /api/ and
    /ajax-api/, and accepts every origin on localhost there, with any port. Artifacts are sent as
    octets, so a body need not be JSON. All of MLflow's pages are at `/`, and with a login also at
    `/signup`.
    """
    return OriginPolicy(
        hosts=loopback_hosts(port),
        open_paths=frozenset({"/health", "/version"}),
        form_paths=frozenset({SIGN_UP_FORM}),
        no_links=NO_PAGES,
        closed=ASSISTANT,
    )


def create_app(settings: Settings, login: MlflowLogin | None) -> ASGIApp:
    """Return MLflow's application. If a login is given, MLflow's basic auth requires it.

    Raises:
        WorkError: MLflow's database cannot be opened.
    """
    variables = server_variables(settings)
    os.environ.update({**variables, **(login.server_variables if login else {})})
    from mlflow.server.handlers import initialize_backend_stores

    from millrace.flows.services.mlflow_restrictions import restrict_artifacts, restrict_webhooks

    restrict_webhooks(webhook_url(settings))
    artifacts = variables["_MLFLOW_SERVER_ARTIFACT_ROOT"]
    restrict_artifacts(Path(artifacts))
    database = variables["_MLFLOW_SERVER_FILE_STORE"]
    prepare_database(database)
    try:
        initialize_backend_stores(database, database, artifacts)
    except Exception as error:
        logging.getLogger("millrace").exception("the database of MLflow cannot be opened")
        raise WorkError(
            "the database of MLflow cannot be opened",
            seen=f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}",
            hint="check MLFLOW_TRACKING_URI, or mlflow.db in the folder MILLRACE_HOME",
        ) from error
    if login is None:
        from mlflow.server.fastapi_app import app

        return app  # type: ignore[no-any-return]
    from mlflow.server.auth import create_app as create_app_with_login

    return create_app_with_login()  # type: ignore[no-any-return]


def main() -> None:
    """Serve until SIGTERM."""
    guard_logging()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    with exit_on_error():
        settings = load()
        app = create_app(settings, load_mlflow_login(settings))

    # No access log: MLflow's clients send requests every few seconds, always from this machine.
    run_server(
        OriginCheck(app, request_policy(settings.mlflow_port)),
        host=LOOPBACK,
        port=settings.mlflow_port,
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
