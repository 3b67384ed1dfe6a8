"""The environment variables that configure Prefect, MLflow and Ray for one installation.

`apply()` must be called before one of the three is imported. This module imports none of them.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from millrace.flows.services import logins, temporary_prefect
from millrace.flows.services.logins import CLIENT_VARIABLE, SERVER_VARIABLE
from millrace.flows.settings import LOOPBACK, PORTS, Settings, load_token, split_login, variable
from millrace.models.common.installation import EMBEDDED, is_this_machine
from millrace.models.common.printable import guard_logging, has_user_part
from millrace.models.registry.signing import SigningKeys

NO_AUTHORITY = Path(__file__).parent / "services" / "no_authority.pem"
REPLACED = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", CLIENT_VARIABLE, SERVER_VARIABLE)
"""Variables that no child process inherits unchanged."""


def installation_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with the addresses, folders and logins of Prefect, MLflow and Ray.

    These variables replace existing values; the variables of `preferences` do not.
    """
    prefect_api = settings.prefect_api()
    derived: dict[str, str] = {}
    if settings.mlflow_tracking_uri is None:
        derived["MLFLOW_TRACKING_URI"] = settings.mlflow_uri()
    if settings.prefect_api_url is None and (api := prefect_api or temporary_prefect.address()):
        derived["PREFECT_API_URL"] = api
    has_own_server = settings.prefect_api_url is None and settings.run.is_dir()
    login = logins.load_prefect_login(settings.run) if has_own_server else ""
    digest = {CLIENT_VARIABLE: logins.hash_login(login)} if login else {}
    environment = {
        **derived,
        **dict.fromkeys((CLIENT_VARIABLE, SERVER_VARIABLE) if login else (), login),
        "MILLRACE_HOME": str(settings.home),
        "MILLRACE_DERIVED": json.dumps(derived | digest),
        # A store that is opened in-process puts the artifacts of new experiments here, not in
        # ./mlruns. The server gets the same folder as --default-artifact-root.
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(settings.home / "artifacts"),
        **_mlflow_login(settings),
    }
    if settings.ray_address == EMBEDDED:
        environment["RAY_AUTH_MODE"] = "token"
        # This machine is never preempted, so Ray need not start a process that watches for this.
        environment["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
        # On Linux too, despite its name: with 0 an embedded Ray listens on loopback only.
        environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        environment["RAY_AUTH_TOKEN_PATH"] = str(settings.run / "ray.token")
    if settings.prefect_api_url is None:
        environment["PREFECT_HOME"] = str(settings.home / "prefect")
        # Prefect's own server has no TLS. Each client would read 120 authorities first, in 18 ms.
        environment["PREFECT_API_SSL_CERT_FILE"] = str(NO_AUTHORITY)
    if prefect_api is None:
        environment["PREFECT_SERVER_EPHEMERAL_ENABLED"] = "true"
    return environment


def _mlflow_login(settings: Settings) -> dict[str, str]:
    """Return the variables with the login of MLflow's clients; empty if there is no login."""
    own = logins.load_mlflow_login(settings)
    if own is not None:
        return dict(own.client_variables)
    uri, login = split_login(settings.mlflow_tracking_uri)
    if login is None:
        return {}
    # Addresses are printed, logged and stored, so the login is removed from the address.
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    return {"MLFLOW_TRACKING_URI": str(uri), **dict(zip(names, login, strict=True))}


def preferences() -> dict[str, str]:
    """Return the defaults that Millrace prefers; a variable that is already set wins."""
    return {
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # The console stays quiet: Millrace reports a failure once, without a stack trace. The log
        # of a run, with its stack traces, is stored with the run.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "millrace",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # MLflow would note every variable that is read while it logs a model, also by other
        # threads: "Set changed size during iteration" ended a run.
        "MLFLOW_RECORD_ENV_VARS_IN_MODEL_LOGGING": "false",
        # The links that MLflow prints open its UI in the mode for language-model applications;
        # Millrace's links do not.
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "true",
        "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "5",
        "MLFLOW_SYSTEM_METRICS_SAMPLES_BEFORE_LOGGING": "1",
        # With the defaults (120 s, and 7 retries with pauses up to 2 minutes) one call to a silent
        # server takes a quarter of an hour. 45 s are enough to store the largest upload. The pauses
        # of 4 retries take half a minute together, which is longer than a restart.
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "45",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
        "RAY_USAGE_STATS_ENABLED": "0",
        # A cluster requires a token; its user sets RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.
        "RAY_AUTH_MODE": "token",
        # gRPC's fork handlers can hang the child that Ray forks while a client is open.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # At SIGTERM Ray would wait half a minute, for the sake of Ray Serve.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # A worker's report waits for the controller's next poll. With the default of 2 s, an epoch
        # of a small model would take 2 s.
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    }


def apply(settings: Settings) -> Settings:
    """Set the tools' variables in this process's environment, and return the settings.

    Creates the home folder and, for an embedded Ray, the token of its clusters. Call it before
    prefect, mlflow or ray is imported.

    Raises:
        WorkError: the home folder cannot be written.
    """
    guard_logging()
    settings.installation().prepared()
    SigningKeys(settings.home).made(lambda: _list_live_versions(settings))
    if settings.ray_address == EMBEDDED:
        load_token(settings, "Ray")
    environment = child_environment(settings)
    for name in REPLACED:
        os.environ.pop(name, None)
    os.environ.update(environment)
    return settings


def _list_live_versions(settings: Settings) -> Iterator[tuple[str, int, str]]:
    """Yield model, version and digest of each version that was ever live in this home."""
    installation = settings.installation()
    if not any(installation.model_repository.iterdir()):
        return  # a new home: nothing was ever released from it
    from millrace.serving.release.ledger import ledger_of  # 20 MB, which only an old home needs

    for release in ledger_of(installation).releases():
        if release.kind == "live":
            yield release.model, release.version, release.digest


def child_environment(settings: Settings) -> dict[str, str]:
    """Return all environment variables of a child process with these settings."""
    inherited = {name: value for name, value in os.environ.items() if name not in REPLACED}
    is_chosen = settings.prefect_api_url is not None
    return {
        **preferences(),
        **inherited,
        **logins.inherit_prefect_login(os.environ, settings.derived, is_chosen=is_chosen),
        **_proxy_exceptions(inherited),
        **chosen_variables(settings),
        **installation_variables(settings),
    }


def chosen_variables(settings: Settings) -> dict[str, str]:
    """Return the variables with which `load()` returns these settings in another process."""
    return _drop_unset(
        {
            "MLFLOW_TRACKING_URI": split_login(settings.mlflow_tracking_uri)[0],
            "PREFECT_API_URL": settings.prefect_api_url,
            "MILLRACE_TABLES": settings.tables,
            "MILLRACE_DEPLOYMENTS": str(settings.deployments),
            "MILLRACE_PIPELINES": ",".join(settings.pipeline_patterns()),
            "MILLRACE_TRUSTED_SIGNERS": ",".join(settings.trusted_signers) or None,
            "MILLRACE_MLFLOW_AUTH": "true" if settings.mlflow_auth else None,
            "MILLRACE_ALERT_URL": settings.alert_url,
            "MILLRACE_GUARD": "on" if settings.guard else "off",
            "MILLRACE_RAY_IDLE": f"{settings.ray_idle:g}",
            "RAY_ADDRESS": None if settings.ray_address == EMBEDDED else settings.ray_address,
            "MILLRACE_TRITON": _format_endpoints(settings),
            **{variable(name): str(getattr(settings, name)) for name in PORTS},
        }
    )


def cluster_variables(settings: Settings) -> dict[str, str]:
    """Return the variables that give a job on a cluster its addresses.

    Everyone who may see the cluster's jobs can read these variables, so addresses with a login are
    left out: the operator of the nodes sets these addresses. The home folder is passed only if the
    cluster is on this machine; another machine creates its own home folder.
    """
    installation = settings.installation()
    addresses = {
        "MLFLOW_TRACKING_URI": installation.tracking_uri,
        "MILLRACE_TABLES": installation.tables_uri,
    }
    is_here = is_this_machine(settings.ray_address)
    keys = SigningKeys(settings.home, settings.trusted_signers)
    return _drop_unset(
        {
            **{name: value for name, value in addresses.items() if not has_user_part(value)},
            "MILLRACE_TRITON": _format_endpoints(settings),
            **{variable(name): str(getattr(settings, name)) for name in PORTS if "triton" in name},
            "MILLRACE_TRUSTED_SIGNERS": ",".join(sorted(keys.trusted())),
            "MILLRACE_HOME": str(settings.home) if is_here else None,
            "MILLRACE_MLFLOW_AUTH": "true" if is_here and settings.mlflow_auth else None,
            "MILLRACE_VLLM_PYTHON": str(settings.vllm_python) if settings.vllm_python else None,
        }
    )


def _format_endpoints(settings: Settings) -> str | None:
    """Return the value of MILLRACE_TRITON; None if it is not set."""
    if settings.triton is None:
        return None
    return ",".join(
        f"{each.host}:{each.http_port}:{each.grpc_port}:{each.metrics_port}"
        for each in settings.triton
    )


def _drop_unset(variables: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if value is not None}


def _proxy_exceptions(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that keep calls to this machine away from an HTTP proxy."""
    if not any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in environment):
        return {}
    hosts = environment.get("NO_PROXY", environment.get("no_proxy", "")).split(",")
    hosts += [host for host in (LOOPBACK, "localhost") if host not in hosts]
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(host for host in hosts if host))
