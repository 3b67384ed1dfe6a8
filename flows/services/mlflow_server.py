"""MLflow's server behind the guard: `python -m millrace.flows.services.mlflow_server`.

`mlflow server` takes the address of the database as an argument, which every user of the machine
can read in /proc, and starts a second process of 250 MB. Its own settings are environment variables
that it sets for the second one; they are set here the same way.
"""

import logging
import os
import sys
from pathlib import Path

from starlette.types import ASGIApp

from millrace.flows.services.logins import Login, login_of
from millrace.flows.services.service_specs import errors_told, webhook_url
from millrace.flows.settings import LOOPBACK, Settings, load
from millrace.models.common.errors import WorkError
from millrace.models.common.printable import guard_logging
from millrace.serving.origin_check import OriginCheck, OriginPolicy, loopback_hosts

SIGN_UP_FORM = "/api/2.0/mlflow/users/create-ui"
"""The one form of MLflow, with a token of its own against forgery."""
ASSISTANT = ("/ajax-api/3.0/mlflow/assistant", "/api/3.0/mlflow/assistant")
"""MLflow's own assistant. Who reaches it may choose its language model, wherever that is, and have
it run any command as the user of this server."""
NO_PAGES = ("/api", "/ajax-api", "/graphql", "/get-artifact", "/model-versions", "/v1", "/gateway")


def server_variables(settings: Settings) -> dict[str, str]:
    """Return the variables that `mlflow server` makes of its options.

    One worker: the SQLite behind it takes one writer at a time, and each worker costs 300 MB.
    """
    port = settings.mlflow_port
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
        # Its own default also lets in every private address.
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(sorted(loopback_hosts(port))),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(
            f"http://{each}" for each in sorted(loopback_hosts(port))
        ),
        # Only for the server: a client in this process would go by them too.
        "MLFLOW_TRACKING_URI": database,
    }


def policy(port: int) -> OriginPolicy:
    """Return what this server lets in.

    MLflow 3.17 itself looks at Host, and at Origin below /api/ and /ajax-api/ only, and takes every
    origin on localhost, whatever its port. Its artifacts are sent as octets, so a body need not be
    JSON. All of its pages are at `/`, and behind a login at `/signup`.
    """
    return OriginPolicy(
        hosts=loopback_hosts(port),
        open_paths=frozenset({"/health", "/version"}),
        form_paths=frozenset({SIGN_UP_FORM}),
        no_links=NO_PAGES,
        closed=ASSISTANT,
    )


def application(settings: Settings, login: Login | None) -> ASGIApp:
    """Return MLflow's application, with its basic auth where a login is given.

    Raises:
        WorkError: its database cannot be opened.
    """
    variables = server_variables(settings)
    os.environ.update({**variables, **(login.server_variables if login else {})})
    from mlflow.server.handlers import initialize_backend_stores

    from millrace.flows.services.mlflow_artifacts import keep_artifacts_in
    from millrace.flows.services.mlflow_webhooks import send_webhooks_to

    send_webhooks_to(webhook_url(settings))
    keep_artifacts_in(Path(variables["_MLFLOW_SERVER_ARTIFACT_ROOT"]))
    database = variables["_MLFLOW_SERVER_FILE_STORE"]
    try:
        initialize_backend_stores(database, database, variables["_MLFLOW_SERVER_ARTIFACT_ROOT"])
    except Exception as error:
        logging.getLogger("millrace").exception("the database of MLflow cannot be opened")
        raise WorkError(
            "the database of MLflow cannot be opened",
            seen=f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}",
            hint="check MLFLOW_TRACKING_URI, or the file mlflow.db in the home",
        ) from error
    if login is None:
        from mlflow.server.fastapi_app import app

        return app  # type: ignore[no-any-return]
    from mlflow.server.auth import create_app

    return create_app()  # type: ignore[no-any-return]


def main() -> None:
    """Serve until SIGTERM."""
    guard_logging()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    with errors_told():
        settings = load()
        app = OriginCheck(application(settings, login_of(settings)), policy(settings.mlflow_port))
    import uvicorn

    # No access log: MLflow's clients ask every few seconds, and who asks is always this machine.
    uvicorn.run(
        app, host=LOOPBACK, port=settings.mlflow_port, access_log=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
