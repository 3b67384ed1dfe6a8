"""The guard records when requests for inference arrive, and nothing that they say."""

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from millrace.models.common.installation import ArrivalsKept, Installation
from millrace.serving.guard import envoy_process
from millrace.serving.guard.arrivals_files import is_written, maintain_arrivals, rotate
from millrace.serving.guard.arrivals_log import FOLDER, log_path
from millrace.serving.guard.arrivals_table import RecordedArrivals, read_arrivals
from millrace.serving.triton.client import TritonClient
from tests.integration.guard_stand import Stand, stand, tensor
from tests.integration.ports import free_endpoint
from tests.integration.test_guard_metrics import guard_of

SECRET = 314159.25
"""A value that no line may have."""
WAIT_SECONDS = 10.0
INVALID_ARGUMENT = 3
"""A status of gRPC."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("arrivals")) as found:
        yield found


def rows(many: int) -> np.ndarray:
    return np.full((many, 4), SECRET, np.float32)


def ask_grpc(served: Stand, model: str, values: np.ndarray) -> None:
    """Ask with everything that a client may add to a request."""
    with InferenceServerClient(served.endpoint.grpc) as client:
        given = InferInput("x", list(values.shape), "FP32")
        given.set_data_from_numpy(values)
        client.infer(
            model,
            [given],
            request_id="secret-id",
            parameters={"secret_parameter": "secret"},
            headers={"secret-header": "secret"},
        )


def recorded(served: Stand, model: str, since: float, many: int) -> RecordedArrivals:
    """Return the requests since a time, as soon as there are so many."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = read_arrivals(served.installation, (model,), since, since + 3600)
        if len(found.times) >= many or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_requests_are_recorded_with_times_sizes_and_rows_and_no_content(served: Stand) -> None:
    begin = time.time()
    served.sums(rows(3))
    ask_grpc(served, "sums", rows(5))
    middle = time.time()
    with pytest.raises(InferenceServerException, match="batch-size"):
        ask_grpc(served, "sums", rows(4000))  # a message of several frames
    served.ask(
        {"id": "secret-id", "inputs": [tensor(rows(2))]},
        path="/v2/models/sums/infer?secret=1",
        headers={"Authorization": "Bearer secret"},
    )
    found = recorded(served, "sums", begin, 4)
    assert found.rows.tolist() == [3, 5, 4000, 2]
    assert found.is_grpc.tolist() == [False, True, True, False]
    assert found.statuses.tolist() == [200, 0, INVALID_ARGUMENT, 200]
    assert found.times[0] >= begin - 0.001
    assert found.times[1] <= middle <= found.times[2]
    assert 5 * 16 < found.sizes[1] < 5 * 16 + 200
    assert 4000 * 16 < found.sizes[2] < 4000 * 16 + 400
    assert (found.seconds > 0).all()
    assert (found.seconds < 5).all()
    text = (served.installation.home / log_path(served.endpoint)).read_bytes()
    words = ("secret", "Bearer", str(SECRET), served.endpoint.token, "127.0.0.1", "/v2", "python")
    assert not [word for word in words if word.encode() in text]
    assert np.float32(SECRET).tobytes() not in text


def test_only_requests_for_inference_are_recorded(served: Stand) -> None:
    begin = time.time()
    served.client.is_ready()
    served.ask(path="/v2/models/sums", method="GET")
    assert served.ask("{").status == 400  # the model never sees it
    served.ask({"inputs": [tensor(rows(1))]}, path="/v2/models/words/infer")  # Triton refuses it
    found = recorded(served, "words", begin, 1)
    assert found.statuses.tolist() == [400]
    assert len(recorded(served, "sums", begin, 0).times) == 0


def test_checks_of_millrace_itself_are_not_recorded(served: Stand) -> None:
    begin = time.time()
    with TritonClient(served.endpoint, checks=True) as client:
        client.predict("sums", {"x": rows(1)})
    served.client.predict("sums", {"x": rows(2)})
    assert recorded(served, "sums", begin, 1).rows.tolist() == [2]


def test_a_name_that_is_no_models_is_not_recorded(served: Stand) -> None:
    before = (served.installation.home / log_path(served.endpoint)).read_text()
    with pytest.raises(InferenceServerException):
        ask_grpc(served, "sums 7\n1795852029305529 forged", rows(1))
    served.sums(rows(1))
    recorded(served, "sums", time.time() - 1, 1)
    after = (served.installation.home / log_path(served.endpoint)).read_text()
    assert "forged" not in after.removeprefix(before)


def test_the_files_are_private(served: Stand) -> None:
    folder = served.installation.home / FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in folder.iterdir())


def test_rotation_and_compaction_lose_nothing(served: Stand) -> None:
    begin, sent = time.time(), 0
    is_done = threading.Event()

    def ask() -> None:
        nonlocal sent
        while not is_done.is_set():
            served.client.predict("sums", {"x": rows(1)})
            sent += 1

    asking = threading.Thread(target=ask)
    asking.start()
    log = served.installation.home / log_path(served.endpoint)
    try:
        for _ in range(3):
            time.sleep(0.5)
            rotate(served.installation, log, time.time())
            time.sleep(0.1)
            maintain_arrivals(served.installation, time.time())
    finally:
        is_done.set()
        asking.join()
    found = recorded(served, "sums", begin, sent)
    assert len(found.times) == sent
    maintain_arrivals(served.installation, time.time())
    found = read_arrivals(served.installation, ("sums",), begin, time.time())
    assert len(found.times) == sent
    names = {each.suffix for each in log.parent.iterdir()}
    assert names == {".log", ".parquet"}
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_rotated_file_that_the_guard_still_writes_to_is_not_compacted(served: Stand) -> None:
    log = served.installation.home / log_path(served.endpoint)
    assert is_written(log, age=0)
    other = log.with_name("other.log")
    other.write_text("")
    assert not is_written(other, age=0)
    other.unlink()


def test_a_guard_that_ends_loses_nothing_and_goes_on(served: Stand) -> None:
    begin = time.time()
    process = guard_of(served.endpoint).pid
    served.sums(rows(1))
    os.kill(process, signal.SIGTERM)
    while os.path.exists(f"/proc/{process}/fd/0"):  # noqa: PTH110  (a zombie has no files)
        time.sleep(0.02)
    with envoy_process.running(served.installation, served.endpoint):
        served.sums(rows(2))
        found = recorded(served, "sums", begin, 2)
    assert found.rows.tolist() == [1, 2]


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    off = Installation(tmp_path, "", "", arrivals_kept=ArrivalsKept(hours=0)).prepared()
    endpoint = free_endpoint()
    assert "--config-path" in envoy_process.command(off, endpoint)
    config = (off.run / f"guard-{endpoint.http_port}.json").read_text()
    assert "access_log" not in config
    assert not (tmp_path / FOLDER).exists()
