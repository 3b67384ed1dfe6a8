"""The logins of the MLflow and the Prefect servers of a home.

MILLRACE_MLFLOW_AUTH switches on MLflow's own basic auth, which uses these files:

    HOME/mlflow_admin.password   the password of the user `admin`, created once, mode 0600
    HOME/mlflow_auth.ini         MLflow's configuration, mode 0600; written again at every start
    HOME/mlflow_auth.db          MLflow's users and their permissions
    HOME/mlflow_flask.key        MLflow's key against forged forms

Millrace's clients log in as `admin`, by environment variables that only this user can read.

Whoever may change a deployment can make Prefect run commands, so a Prefect API without a login is a
shell for every process and every container that reaches the port. Prefect knows one login of the
form `USER:PASSWORD`. Prefect's clients send the login by HTTP basic authentication; its UI asks for
the whole string. The login is stored in a file of the home and passed on in the environment, never
in an argument. A server that the user names by PREFECT_API_URL has the user's own login, given by
PREFECT_API_AUTH_STRING; this home's login is never sent there.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace.flows.settings import Settings
from millrace.models.common.errors import WorkError
from millrace.models.common.private_files import read_or_create_secret, replace_private

ADMIN = "admin"
CACHE_SECONDS = 60
"""MLflow caches a correct password for this long. The cache works because MLflow's server is one
process."""
CLIENT_VARIABLE = "PREFECT_API_AUTH_STRING"
SERVER_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING"
PREFECT_USER = "millrace"


@dataclass(frozen=True)
class MlflowLogin:
    """The login of MLflow, as the environment variables of each side.

    Attributes:
        client_variables: the variables with which MLflow's clients log in.
        server_variables: the variables with which the server checks the login. Only the server gets
            these variables.
    """

    client_variables: Mapping[str, str] = field(repr=False)
    server_variables: Mapping[str, str] = field(repr=False)


def load_mlflow_login(settings: Settings) -> MlflowLogin | None:
    """Return the login of the MLflow server of `up`; None if the server requires no login.

    The login is created once and stored in the home.

    Raises:
        WorkError: the login's files cannot be read or written.
    """
    if not settings.has_mlflow_login:
        return None
    home = settings.home
    try:
        password = read_or_create_secret(
            home / "mlflow_admin.password", lambda: secrets.token_urlsafe(24)
        )
        key = read_or_create_secret(home / "mlflow_flask.key", lambda: secrets.token_hex(32))
        ini = home / "mlflow_auth.ini"
        text = _format_ini(f"sqlite:///{home / 'mlflow_auth.db'}", password)
        if not ini.exists() or ini.read_text() != text:
            replace_private(ini, text)
    except OSError as error:
        raise WorkError(
            "the files with the login of the MLflow server cannot be read or written", seen=error
        ) from error
    return MlflowLogin(
        {"MLFLOW_TRACKING_USERNAME": ADMIN, "MLFLOW_TRACKING_PASSWORD": password},
        {
            "MLFLOW_AUTH_CONFIG_PATH": str(ini),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": key,
            # A route that MLflow has no rule for is refused to everyone but the administrator.
            "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
        },
    )


def _format_ini(database: str, password: str) -> str:
    return (
        "[mlflow]\n"
        "default_permission = NO_PERMISSIONS\n"
        f"database_uri = {database}\n"
        f"admin_username = {ADMIN}\n"
        f"admin_password = {password}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        "grant_default_workspace_access = false\n"
        f"auth_cache_ttl_seconds = {CACHE_SECONDS}\n"
    )


def prefect_login_file(run: Path) -> Path:
    """Return the file of Prefect's login, in the folder `run` of the home."""
    return run / "prefect.login"


def load_prefect_login(run: Path) -> str:
    """Return Prefect's login, created once and readable by this user only."""
    return read_or_create_secret(
        prefect_login_file(run), lambda: f"{PREFECT_USER}:{secrets.token_hex(32)}"
    )


def hash_login(login: str) -> str:
    """Return a digest that identifies a login without revealing it."""
    return hashlib.sha256(login.encode()).hexdigest()


def inherit_prefect_login(
    environment: Mapping[str, str], derived: Mapping[str, str], *, is_chosen: bool
) -> dict[str, str]:
    """Return the variables of Prefect's login in `environment` that a child process may have.

    Args:
        environment: the environment of this process.
        derived: the variables that Millrace itself put into `environment`; the value for the login
            is its digest.
        is_chosen: whether the user chose the Prefect server; such a server never gets this home's
            login.
    """
    if not is_chosen:
        return {}
    names = (CLIENT_VARIABLE, SERVER_VARIABLE)
    own = derived.get(CLIENT_VARIABLE)
    return {
        name: environment[name]
        for name in names
        if name in environment and hash_login(environment[name]) != own
    }
