"""The login of the MLflow that `up` runs: MLflow's own basic auth, by one setting.

    HOME/mlflow_admin.password   of the user `admin`, made once, mode 0600
    HOME/mlflow_auth.ini         what MLflow reads, mode 0600; written anew at every start
    HOME/mlflow_auth.db          its users and what they may do
    HOME/mlflow_flask.key        its key against forged forms

Our own clients log in as `admin`, by variables that only this user can read.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.flows.settings import Settings
from millrace.models.common.errors import WorkError
from millrace.models.common.private_files import kept_secret, replace_private

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
        password = kept_secret(home / "mlflow_admin.password", lambda: secrets.token_urlsafe(24))
        key = kept_secret(home / "mlflow_flask.key", lambda: secrets.token_hex(32))
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
