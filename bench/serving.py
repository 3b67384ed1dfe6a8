"""P1 to P3: Triton beside ONNX Runtime in process, and the gain of dynamic batching.

A and B take turns in one run on one machine. Both sides have one ONNX Runtime thread, so a ratio
depends on the serving and not on the number of cores.
"""

import statistics
from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial

from bench.measure import Row, measure_in_turn, measure_rows, quantile, time_calls
from bench.offline_client import OfflineClient
from bench.server import Bench, batch_of, mlp, own_server, raw_session
from millrace.models.config.serving_spec import ServingSpec

ROUNDS = 15
SECONDS = 0.6
IN_FLIGHT = 3


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on one Triton."""
    with own_server() as bench:
        measures = {
            "P1": partial(offline_throughput, bench),
            "P2": partial(single_client_latency, bench),
            "P3": partial(dynamic_batching_gain, bench),
        }
        yield from measure_rows(measures, wanted)


def offline_throughput(bench: Bench, batch: int = 512) -> Row:
    """P1: rows per second of full batches, against the session in this process.

    The client is built for throughput: it runs on the server's machine, passes tensors in system
    shared memory, and always has a request waiting at the server while another is computed.
    """
    widths = (256, 1024, 1024, 1024, 10)
    onnx = mlp(bench.repository.staging / "offline.onnx", widths)
    bench.serve("offline", onnx, ServingSpec(max_batch_size=batch))
    session, feed = raw_session(onnx), batch_of(256, batch)

    def in_process() -> float:
        return batch / statistics.mean(time_calls(lambda: session.run(None, feed), SECONDS))

    answer = {"y": (batch, widths[-1])}
    with closing(
        OfflineClient(bench.client.endpoint, "offline", feed, answer, IN_FLIGHT)
    ) as client:
        rounds = measure_in_turn(lambda: client.rows_per_second(SECONDS), in_process, ROUNDS)
    milliseconds = 1e3 * batch / statistics.median(rounds.b)
    return Row(
        name="P1",
        what=f"Triton offline rows/s ÷ in-process ONNX Runtime, {milliseconds:.0f} ms a batch",
        value=rounds.ratio,
        goal="≥ 0.90",
        holds=rounds.ratio >= 0.90,
        samples={"triton_rows_per_s": rounds.a, "in_process_rows_per_s": rounds.b},
    )


def single_client_latency(bench: Bench) -> Row:
    """P2: the additional latency of one client, against the session in this process."""
    onnx = mlp(bench.repository.staging / "single.onnx", (64, 128, 10))
    bench.serve("single", onnx, ServingSpec())
    session, feed = raw_session(onnx), batch_of(64, 1)

    def served() -> float:
        return bench.latency_ms("single", feed, 0.9, SECONDS)

    def in_process() -> float:
        return 1e3 * quantile(time_calls(lambda: session.run(None, feed), SECONDS), 0.9)

    rounds = measure_in_turn(served, in_process, ROUNDS)
    return Row(
        name="P2",
        what="one client, served p90 − raw p90, ms",
        value=rounds.difference,
        goal="≤ 1 ms",
        holds=rounds.difference <= 1.0,
        samples={"served_p90_ms": rounds.a, "raw_p90_ms": rounds.b},
    )


def dynamic_batching_gain(bench: Bench, clients: int = 16) -> Row:
    """P3: requests per second of single rows, with dynamic batching against without."""
    onnx = mlp(bench.repository.staging / "dynamic.onnx", (256, 2048, 2048, 10))
    bench.serve("batching_on", onnx, ServingSpec(max_batch_size=clients))
    bench.serve("batching_off", onnx, ServingSpec(max_batch_size=clients), batching=False)
    on, off = (
        bench.request_rate(model, batch_of(256, 1), clients, SECONDS)
        for model in ("batching_on", "batching_off")
    )
    rounds = measure_in_turn(on, off, ROUNDS)
    return Row(
        name="P3",
        what=f"dynamic batching on ÷ off, {clients} clients, requests/s",
        value=rounds.ratio,
        goal="≥ 1.5",
        holds=rounds.ratio >= 1.5,
        samples={"on_requests_per_s": rounds.a, "off_requests_per_s": rounds.b},
    )
