from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.serving.batch.cluster.shared_storage import leave_proof, require_shared, take_proof

HERE, ELSEWHERE = "http://127.0.0.1:8265", "https://head.example:8265"


def installation(
    address: str, registry: str = "http://mlflow:5000", tables: str = "s3://b/t"
) -> Installation:
    return Installation(Path("/home/me/.millrace"), registry, tables, ray_address=address)


@pytest.mark.parametrize("address", [HERE, "http://localhost:8265", "http://[::1]:8265"])
def test_a_cluster_on_this_machine_sees_its_folders(address: str) -> None:
    require_shared(
        installation(address, "sqlite:////home/mlflow.db", "/home/tables"), "/home/rows.csv"
    )


def test_a_cluster_elsewhere_sees_servers_stores_and_what_all_nodes_mount() -> None:
    require_shared(installation(ELSEWHERE), "s3://b/rows.parquet")
    require_shared(installation(ELSEWHERE, tables="file:///mnt/tables"), "file:///mnt/rows.parquet")
    require_shared(installation(ELSEWHERE), None)


@pytest.mark.parametrize(
    ("registry", "tables", "source", "setting"),
    [
        ("sqlite:////home/mlflow.db", "s3://b/t", None, "MLFLOW_TRACKING_URI"),
        ("http://127.0.0.1:5000", "s3://b/t", None, "MLFLOW_TRACKING_URI"),
        ("http://mlflow:5000", "/home/tables", None, "MILLRACE_TABLES"),
        ("http://mlflow:5000", "s3://b/t", "/home/rows.csv", "--input"),
    ],
)
def test_what_a_cluster_elsewhere_cannot_see_is_told_before_a_job_is_submitted(
    registry: str, tables: str, source: str | None, setting: str
) -> None:
    with pytest.raises(InputError, match="a cluster on other machines cannot reach") as told:
        require_shared(installation(ELSEWHERE, registry, tables), source)
    assert setting in str(told.value.hint)


@pytest.mark.parametrize("address", [HERE, ELSEWHERE])
def test_a_password_is_not_shown_to_the_cluster(address: str) -> None:
    with pytest.raises(InputError, match="password") as told:
        require_shared(installation(address, "http://me:secret@mlflow:5000"), None)
    assert "secret" not in str(told.value)


def test_a_job_takes_away_what_the_flow_has_left(tmp_path: Path) -> None:
    leave_proof(str(tmp_path), "id")
    take_proof(str(tmp_path), "id")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_another_folder_of_the_same_name_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not see the tables"):
        take_proof(str(tmp_path), "id")


def test_an_object_store_is_the_same_everywhere() -> None:
    leave_proof("s3://nowhere/t", "id")
    take_proof("s3://nowhere/t", "id")


def test_tables_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkError, match="cannot be written"):
        leave_proof(str(tmp_path / "file"), "id")
