"""The logins of the MLflow and the Prefect servers of a home.

MLflow's own basic auth, by one setting:

    HOME/mlflow_admin.password   of the user `admin`, made once, mode 0600
    HOME/mlflow_auth.ini         what MLflow reads, mode 0600; written anew at every start
    HOME/mlflow_auth.db          its users and what they may do
    HOME/mlflow_flask.key        its key against forged forms

Our own clients log in as `admin`, by variables that only this user can read.

Prefect's API starts commands for whoever may change a deployment, so without a login it is a shell
for every process and every container that reaches the port. Prefect knows one login of the form
`USER:PASSWORD`, which its clients send by HTTP's basic authentication; the page of its UI asks for
the whole of it. It is kept in a file of the home, and handed on in the environment, never in an
argument. A server that the user names by PREFECT_API_URL has a login of the user's, who gives it by
PREFECT_API_AUTH_STRING: ours is never sent there.
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
"""For which a password that was right is not hashed again; the server is one process."""


@dataclass(frozen=True)
class Login:
    """Who may log in, and what the server needs to check that.

    Attributes:
        user: the administrator.
        password: its password.
        server_variables: of the server's process alone.
    """

    user: str
    password: str = field(repr=False)
    server_variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def client_variables(self) -> dict[str, str]:
        """What MLflow's client logs in by."""
        return {"MLFLOW_TRACKING_USERNAME": self.user, "MLFLOW_TRACKING_PASSWORD": self.password}


def login_of(settings: Settings) -> Login | None:
    """Return the login of the MLflow that runs here; None where it asks for none.

    Raises:
        WorkError: its files cannot be read or written.
    """
    if not settings.asks_for_mlflow_login:
        return None
    home = settings.home
    try:
        password = read_or_create_secret(
            home / "mlflow_admin.password", lambda: secrets.token_urlsafe(24)
        )
        key = read_or_create_secret(home / "mlflow_flask.key", lambda: secrets.token_hex(32))
        ini = home / "mlflow_auth.ini"
        text = _ini(f"sqlite:///{home / 'mlflow_auth.db'}", password)
        if not ini.exists() or ini.read_text() != text:
            replace_private(ini, text)
    except OSError as error:
        raise WorkError("the login of MLflow cannot be kept", seen=error) from error
    variables = {
        "MLFLOW_AUTH_CONFIG_PATH": str(ini),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": key,
        # A route that MLflow has no rule for is refused to all but the administrator.
        "MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true",
    }
    return Login(ADMIN, password, variables)


def _ini(database: str, password: str) -> str:
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


CLIENT, SERVER = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
USER = "millrace"
FILE = "prefect.login"


def login_file(run: Path) -> Path:
    """Return the file of the login, in the folder `run` of the home."""
    return run / FILE


def prefect_login(run: Path) -> str:
    """Return the login, made once and kept readable by this user only."""
    return read_or_create_secret(login_file(run), lambda: f"{USER}:{secrets.token_hex(32)}")


def digest(login: str) -> str:
    """Return what tells a login apart from another and does not give it away."""
    return hashlib.sha256(login.encode()).hexdigest()


def inherited_login(
    environment: Mapping[str, str], derived: Mapping[str, str], *, chosen: bool
) -> dict[str, str]:
    """Return the variables of a login in `environment` that a process may be given.

    Args:
        environment: that of this process.
        derived: what Millrace put into it itself, the login as its digest.
        chosen: whether the user chose the Prefect server; it gets no login that we derived.
    """
    if not chosen:
        return {}
    kept = {name: environment[name] for name in (CLIENT, SERVER) if name in environment}
    return {name: login for name, login in kept.items() if derived.get(CLIENT) != digest(login)}
