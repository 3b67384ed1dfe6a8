import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.flows import run_state, settings, tool_variables
from millrace.flows.console import to_json_value
from millrace.flows.services import temporary_prefect
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Endpoint


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A private copy: apply() changes the environment, and the test's end restores it.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in settings.variables():
        os.environ.pop(name, None)
    os.environ["MILLRACE_HOME"] = str(tmp_path / "home")


def _served(home: Path, **addresses: str) -> object:
    """Pretend that a supervisor runs: a record, and its lock held by this process."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    services = tuple(
        run_state.ServiceRecord(name, address, "log") for name, address in addresses.items()
    )
    run_state.write(home / "run", run_state.RunRecord(1, 0.0, services))
    return run_state.take_lock(home / "run")


def test_everything_is_embedded_by_default(tmp_path: Path) -> None:
    loaded = settings.load()
    installation = loaded.installation()
    assert installation.home == tmp_path / "home"
    assert installation.tracking_uri == f"sqlite:///{tmp_path}/home/mlflow.db"
    assert installation.tables_uri == f"{tmp_path}/home/tables"
    assert installation.ray_address == "local"
    assert installation.triton == (Endpoint("127.0.0.1", 8000, 8001, 8002),)
    assert loaded.prefect_api() is None


def test_a_part_moves_by_one_setting() -> None:
    os.environ["MLFLOW_TRACKING_URI"] = "http://mlflow:5000"
    os.environ["MILLRACE_TRITON"] = "a:1:2, b:3:4:5"
    os.environ["MILLRACE_TABLES"] = "s3://bucket/tables"
    installation = settings.load().installation()
    assert installation.tracking_uri == "http://mlflow:5000"
    assert installation.triton == (Endpoint("a", 1, 2, 8002), Endpoint("b", 3, 4, 5))
    assert installation.table("digits", "rows") == "s3://bucket/tables/digits/rows"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MILLRACE_MLFLOW_PORT", "many"),
        ("MILLRACE_PREFECT_PORT", "70000"),
        ("MILLRACE_TRITON", "host:8000"),
        ("MILLRACE_TRITON", "host:http:grpc"),
    ],
)
def test_a_bad_value_is_named_with_what_is_valid(name: str, value: str) -> None:
    os.environ[name] = value
    with pytest.raises(InputError) as raised:
        settings.load()
    assert name in raised.value.what
    assert raised.value.seen == value
    assert raised.value.valid


def test_two_services_cannot_have_one_port() -> None:
    os.environ["MILLRACE_MLFLOW_PORT"] = "4200"
    with pytest.raises(InputError, match="ports"):
        settings.load()


def test_a_misspelt_setting_is_refused_with_the_right_name() -> None:
    os.environ["MILLRACE_MLFLOW_PROT"] = "5001"
    with pytest.raises(InputError, match="did you mean MILLRACE_MLFLOW_PORT"):
        settings.load()


def test_a_running_supervisor_gives_the_addresses(tmp_path: Path) -> None:
    lock = _served(tmp_path / "home", mlflow="http://127.0.0.1:1", prefect="http://127.0.0.1:2")
    loaded = settings.load()
    assert loaded.installation().tracking_uri == "http://127.0.0.1:1"
    assert loaded.prefect_api() == "http://127.0.0.1:2/api"
    assert lock is not None


def test_the_record_of_a_dead_supervisor_is_ignored(tmp_path: Path) -> None:
    lock = _served(tmp_path / "home", mlflow="http://127.0.0.1:1")
    lock.close()  # type: ignore[attr-defined]
    assert settings.load().installation().tracking_uri.startswith("sqlite:///")


def test_what_apply_derived_is_no_choice(tmp_path: Path) -> None:
    lock = _served(tmp_path / "home", mlflow="http://127.0.0.1:1", prefect="http://127.0.0.1:2")
    tool_variables.apply(settings.load())
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:2/api"
    lock.close()  # type: ignore[attr-defined]
    again = settings.load()
    assert again.mlflow_tracking_uri is None
    tool_variables.apply(again)
    assert os.environ["MLFLOW_TRACKING_URI"].startswith("sqlite:///")
    assert "PREFECT_API_URL" not in os.environ


def test_a_temporary_prefect_server_stays_and_is_no_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect starts a server of its own where it finds no address."""
    api = "http://127.0.0.1:4321/api"
    monkeypatch.setattr(temporary_prefect, "address", lambda: api)
    for _ in range(2):
        tool_variables.apply(settings.load())
        assert os.environ["PREFECT_API_URL"] == api
        assert settings.load().prefect_api_url is None


def test_a_choice_after_apply_is_a_choice() -> None:
    tool_variables.apply(settings.load())
    os.environ["MLFLOW_TRACKING_URI"] = "http://elsewhere"
    assert settings.load().installation().tracking_uri == "http://elsewhere"


def test_apply_keeps_telemetry_off_and_what_the_user_prefers() -> None:
    os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] = "1"
    tool_variables.apply(settings.load())
    assert os.environ["DO_NOT_TRACK"] == "true"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL"] == "1"


def test_apply_makes_one_private_ray_token(tmp_path: Path) -> None:
    tool_variables.apply(settings.load())
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    first = token.read_text()
    tool_variables.apply(settings.load())
    assert token.read_text() == first
    assert len(first) == 64
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_prepared_home_has_one_private_triton_token(tmp_path: Path) -> None:
    loaded = settings.load()
    assert loaded.installation().triton[0].token == ""
    assert not (tmp_path / "home").exists()
    token = tool_variables.apply(loaded).installation().triton[0].token
    file = tmp_path / "home/run/triton.token"
    assert len(token) == 64
    assert file.read_text() == token == settings.load().local_triton.token
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_triton_that_was_chosen_has_no_token() -> None:
    os.environ["MILLRACE_TRITON"] = "127.0.0.1:8000:8001"
    assert tool_variables.apply(settings.load()).installation().triton[0].token == ""


def test_the_triton_token_is_not_shown() -> None:
    installation = tool_variables.apply(settings.load()).installation()
    token = installation.triton[0].token
    shown = to_json_value(installation)
    assert token not in repr(installation) + json.dumps(shown) + json.dumps(dict(os.environ))
    assert shown["triton"][0]["grpc_port"] == 8001


def test_the_token_of_a_remote_cluster_is_left_to_the_user() -> None:
    os.environ["RAY_ADDRESS"] = "ray://head:10001"
    os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
    tool_variables.apply(settings.load())
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_a_remote_cluster_without_a_token_is_the_users_choice() -> None:
    os.environ |= {"RAY_ADDRESS": "http://head:8265", "RAY_AUTH_MODE": "disabled"}
    tool_variables.apply(settings.load())
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_job_on_a_cluster_is_told_where_everything_is_and_no_secret() -> None:
    os.environ |= {
        "RAY_ADDRESS": "http://head:8265",
        "RAY_AUTH_TOKEN": "secret",
        "MLFLOW_TRACKING_URI": "http://mlflow:5000",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MILLRACE_TABLES": "s3://b/tables",
        "MILLRACE_TRITON": "triton:8000:8001:8002",
    }
    told = tool_variables.cluster_variables(tool_variables.apply(settings.load()))
    assert told["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert told["MILLRACE_TABLES"] == "s3://b/tables"
    assert told["MILLRACE_TRITON"] == "triton:8000:8001:8002"
    assert "MILLRACE_HOME" not in told
    assert "secret" not in json.dumps(told)


def test_a_job_on_this_machines_cluster_has_the_same_home(tmp_path: Path) -> None:
    os.environ["RAY_ADDRESS"] = "http://127.0.0.1:8265"
    told = tool_variables.cluster_variables(settings.load())
    assert told["MILLRACE_HOME"] == str(tmp_path / "home")
    assert told["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/home/mlflow.db"


def test_a_job_on_a_cluster_knows_which_python_has_vllm() -> None:
    os.environ["RAY_ADDRESS"] = "http://ray:8265"
    assert "MILLRACE_VLLM_PYTHON" not in tool_variables.cluster_variables(settings.load())
    os.environ["MILLRACE_VLLM_PYTHON"] = "/opt/vllm/bin/python"
    told = tool_variables.cluster_variables(settings.load())
    assert told["MILLRACE_VLLM_PYTHON"] == "/opt/vllm/bin/python"


def test_a_child_loads_the_same_settings() -> None:
    os.environ["MILLRACE_PIPELINES"] = "a.yaml,b/*.yaml"
    os.environ["MILLRACE_TRITON"] = "a:1:2:3"
    os.environ["MILLRACE_MLFLOW_PORT"] = "5999"
    loaded = settings.load()
    os.environ.update(tool_variables.child_environment(loaded))
    child = settings.load()
    assert child.model_copy(update={"pipelines": (), "derived": {}}) == loaded.model_copy(
        update={"pipelines": (), "derived": {}}
    )
    assert child.pipelines == (str(Path.cwd() / "a.yaml"), str(Path.cwd() / "b/*.yaml"))


def test_a_child_elsewhere_finds_the_default_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "digits.yaml").write_text("name: digits\n")
    monkeypatch.chdir(tmp_path)
    os.environ.update(tool_variables.child_environment(settings.load()))
    monkeypatch.chdir("/")
    assert settings.load().pipeline_files() == (tmp_path / "examples" / "digits.yaml",)


def test_a_proxy_is_not_asked_for_this_machine() -> None:
    os.environ.update(HTTP_PROXY="http://proxy:3128", NO_PROXY="corp")
    tool_variables.apply(settings.load())
    assert os.environ["NO_PROXY"] == "corp,127.0.0.1,localhost"


def test_pipelines_are_paths_and_globs(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_text("name: x\n")
    os.environ["MILLRACE_PIPELINES"] = f"{tmp_path}/b.yaml,{tmp_path}/*.yaml"
    assert settings.load().pipeline_files() == (tmp_path / "b.yaml", tmp_path / "a.yaml")
    os.environ["MILLRACE_PIPELINES"] = f"{tmp_path}/none.yaml"
    with pytest.raises(InputError, match="MILLRACE_PIPELINES"):
        settings.load().pipeline_files()


def test_importing_the_settings_imports_no_tool() -> None:
    look = "print({'mlflow', 'prefect', 'ray'} & set(sys.modules))"
    script = f"import sys, millrace.flows.settings; {look}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_relative_places_are_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.environ.update(MILLRACE_TABLES="tables", MLFLOW_TRACKING_URI="sqlite:///mlflow.db")
    loaded = settings.load()
    assert loaded.tables == str(tmp_path / "tables")
    assert loaded.mlflow_tracking_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.mark.parametrize("uri", ["s3://bucket/tables", "memory://tables"])
def test_a_uri_of_tables_is_kept(uri: str) -> None:
    os.environ["MILLRACE_TABLES"] = uri
    assert settings.load().tables == uri


def test_the_login_of_an_address_is_no_part_of_it(tmp_path: Path) -> None:
    address = "http://ann:s3cr3t%2F@mlflow.local:5000/x"
    found = settings.Settings(home=tmp_path, mlflow_tracking_uri=address)
    assert found.mlflow_uri() == "http://mlflow.local:5000/x"
    variables = tool_variables.installation_variables(found)
    assert variables["MLFLOW_TRACKING_URI"] == "http://mlflow.local:5000/x"
    assert variables["MLFLOW_TRACKING_USERNAME"] == "ann"
    assert variables["MLFLOW_TRACKING_PASSWORD"] == "s3cr3t/"
    assert (
        tool_variables.chosen_variables(found)["MLFLOW_TRACKING_URI"]
        == "http://mlflow.local:5000/x"
    )


def test_the_login_of_our_own_mlflow_is_made_once_and_is_private(tmp_path: Path) -> None:
    found = settings.Settings(home=tmp_path, mlflow_auth=True)
    first = tool_variables.installation_variables(found)
    assert first["MLFLOW_TRACKING_USERNAME"] == "admin"
    assert len(first["MLFLOW_TRACKING_PASSWORD"]) >= 32
    assert tool_variables.installation_variables(found) == first
    assert tool_variables.chosen_variables(found)["MILLRACE_MLFLOW_AUTH"] == "true"
    for name in ("mlflow_admin.password", "mlflow_auth.ini", "mlflow_flask.key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    other = "http://other:1"
    elsewhere = settings.Settings(home=tmp_path, mlflow_auth=True, mlflow_tracking_uri=other)
    assert "MLFLOW_TRACKING_PASSWORD" not in tool_variables.installation_variables(elsewhere)


@pytest.mark.parametrize(
    "address",
    ["bob:s3crxx@127.0.0.1:5000", "http://bob:s3cr xx@h", "http://bob:s3cr/xx@127.0.0.1:1"],
)
def test_an_address_whose_password_cannot_be_hidden_is_refused_and_not_shown(address: str) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = address
    with pytest.raises(InputError) as caught:
        settings.load()
    error = caught.value
    assert "s3cr" not in f"{error.what}{error.seen}{error.valid}{error.hint}"
    assert "%XX" in str(error.valid)


@pytest.mark.parametrize(
    "address", ["http://bob:s3cr%20t@h:5000/x", "postgresql://u:pa/ss@h/db", "sqlite:////a@b/m.db"]
)
def test_other_addresses_with_a_login_are_taken(address: str) -> None:
    os.environ["MLFLOW_TRACKING_URI"] = address
    assert settings.load().mlflow_tracking_uri == address


def test_the_memory_of_ingestion_is_a_number_of_gib() -> None:
    assert settings.load().installation().ingest_memory is None
    os.environ["MILLRACE_INGEST_MEMORY_GIB"] = "0.5"
    assert settings.load().installation().ingest_memory == 2**29
    os.environ["MILLRACE_INGEST_MEMORY_GIB"] = "0"
    with pytest.raises(InputError, match="MILLRACE_INGEST_MEMORY_GIB is not valid"):
        settings.load()
