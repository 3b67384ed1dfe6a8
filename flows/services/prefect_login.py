"""The login of this home's Prefect servers: the one of `up`, and the temporary ones of commands.

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
from pathlib import Path

from millrace.models.common.private_files import kept_secret

CLIENT, SERVER = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
USER = "millrace"
FILE = "prefect.login"


def login_file(run: Path) -> Path:
    """Return the file of the login, in the folder `run` of the home."""
    return run / FILE


def prefect_login(run: Path) -> str:
    """Return the login, made once and kept readable by this user only."""
    return kept_secret(login_file(run), lambda: f"{USER}:{secrets.token_hex(32)}")


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
