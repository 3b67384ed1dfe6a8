"""P1 to P3: what Triton costs beside ONNX Runtime in process, and what dynamic batching gives.

A and B take turns in one run on one machine. Both sides have one ONNX Runtime thread, so a ratio
tells of the serving and not of the number of cores.
"""

import statistics
from collections.abc import Callable, Collection, Iterator
from functools import partial

from bench.catalog import attempt
from bench.offline_client import OfflineClient
from bench.rounds import difference, in_turn, quantile, ratio, timed
from bench.row import Row
from bench.server import Bench, batch_of, mlp, own_server, raw_session
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.load_generator import measure

ROUNDS = 15
SECONDS = 0.6
IN_FLIGHT = 3


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start a Triton of our own, measure P1, P2 and P3 where wanted, and stop it."""
    measures = {
        "P1": offline_throughput,
        "P2": single_client_latency,
        "P3": dynamic_batching_gain,
    }
    with own_server() as bench:
        for name, measure_row in measures.items():
            if name in wanted:
                yield attempt(name, partial(measure_row, bench))


def offline_throughput(bench: Bench, batch: int = 512) -> Row:
    """P1: rows per second of full batches, against the session in this process.

    The client is one that wants throughput: it shares the server's machine and hands tensors over
    by system shared memory, and a request always waits at the server while another is computed.
    """
    widths = (256, 1024, 1024, 1024, 10)
    onnx = mlp(bench.repository.staging / "offline.onnx", widths)
    bench.serve("offline", onnx, ServingSpec(max_batch_size=batch))
    session, feed = raw_session(onnx), batch_of(256, batch)

    def in_process() -> float:
        return batch / statistics.mean(timed(lambda: session.run(None, feed), SECONDS))

    answer = {"y": (batch, widths[-1])}
    with OfflineClient(bench.client.endpoint, "offline", feed, answer, IN_FLIGHT) as client:
        a, b = in_turn(lambda: client.rows_per_second(SECONDS), in_process, ROUNDS)
    value = ratio(a, b)
    milliseconds = 1e3 * batch / statistics.median(b)
    return Row(
        name="P1",
        what=f"Triton offline rows/s ÷ in-process ONNX Runtime, {milliseconds:.0f} ms a batch",
        value=value,
        goal="≥ 0.90",
        holds=value >= 0.90,
        samples={"triton_rows_per_s": a, "in_process_rows_per_s": b},
    )


def single_client_latency(bench: Bench) -> Row:
    """P2: what one client waits longer for Triton than for the session in this process."""
    onnx = mlp(bench.repository.staging / "single.onnx", (64, 128, 10))
    bench.serve("single", onnx, ServingSpec())
    session, feed = raw_session(onnx), batch_of(64, 1)

    def served() -> float:
        return 1e3 * quantile(timed(lambda: bench.client.predict("single", feed), SECONDS), 0.9)

    def in_process() -> float:
        return 1e3 * quantile(timed(lambda: session.run(None, feed), SECONDS), 0.9)

    a, b = in_turn(served, in_process, ROUNDS)
    value = difference(a, b)
    return Row(
        name="P2",
        what="one client, served p90 − raw p90, ms",
        value=value,
        goal="≤ 1 ms",
        holds=value <= 1.0,
        samples={"served_p90_ms": a, "raw_p90_ms": b},
    )


def dynamic_batching_gain(bench: Bench, clients: int = 16) -> Row:
    """P3: requests per second of single rows, with dynamic batching against without."""
    onnx = mlp(bench.repository.staging / "dynamic.onnx", (256, 2048, 2048, 10))
    bench.serve("batching_on", onnx, ServingSpec(max_batch_size=clients))
    bench.serve("batching_off", onnx, ServingSpec(max_batch_size=clients), batching=False)
    feed = batch_of(256, 1)

    def rate(model: str) -> Callable[[], float]:
        return lambda: (
            measure(
                bench.client.endpoint, model, feed, clients=clients, seconds=SECONDS
            ).requests_per_second
        )

    a, b = in_turn(rate("batching_on"), rate("batching_off"), ROUNDS)
    value = ratio(a, b)
    return Row(
        name="P3",
        what=f"dynamic batching on ÷ off, {clients} clients, requests/s",
        value=value,
        goal="≥ 1.5",
        holds=value >= 1.5,
        samples={"on_requests_per_s": a, "off_requests_per_s": b},
    )
