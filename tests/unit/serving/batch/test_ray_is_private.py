"""The embedded Ray is for this user alone."""

from pathlib import Path

import ray

from millrace.models.common.ray_folder import is_private, ray_folder


def test_no_other_user_enters_the_folder_of_its_sockets_logs_and_code(local_ray: None) -> None:
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    assert session.stat().st_mode & 0o077, "Ray's own folders are open to all"
    assert session.parent == ray_folder()
    assert is_private(session.parent.parent)
