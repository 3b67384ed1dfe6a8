"""S1 to S3: what the traffic splitter costs while a rollout is on, beside the plain model.

Both serve the same file in the same server and take turns. The canary's weight is next to nothing,
so that the champion answers in both and no answer is computed twice: what is left is the splitter.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from bench.catalog import attempt
from bench.rounds import in_turn, quantile, ratio, timed
from bench.row import Row
from bench.server import Bench, batch_of, mlp, own_server
from millrace.models.common.digest import digest_of
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.rollout.rollout import Split
from millrace.serving.rollout.splitting import start_split
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.load_generator import measure

ROUNDS = 9
SECONDS = 1.0
CLIENTS = 8
CANARY = Split("canary", 1, 2, "canary", 1e-9, 100.0, "sticky_key", 0.01, began=0.0)
SHADOW = Split("shadow", 1, 2, "shadow", 0.0, 100.0, "sticky_key", 0.01, began=0.0)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start a Triton of our own, measure S1 to S3 where wanted, and stop it."""
    measures = {"S1": canary_latency, "S2": canary_throughput, "S3": shadow_latency}
    with own_server() as bench:
        onnx = mlp(bench.repository.staging / "model.onnx", (256, 1024, 1024, 10))
        bench.serve("plain", onnx, ServingSpec())
        for split in (CANARY, SHADOW):
            for version in (1, 2):
                artifact = artifact_of_graph(onnx, digest_of(onnx))
                bench.repository.stage(split.model, version, artifact)
            start_split(split, bench.repository, bench.client)
        for name, measure_row in measures.items():
            if name in wanted:
                yield attempt(name, partial(measure_row, bench))


def canary_latency(bench: Bench) -> Row:
    """S1: median latency of one client."""
    return _latency(bench, "S1", CANARY.model)


def shadow_latency(bench: Bench) -> Row:
    """S3: the same in a shadow, where the candidate is computing while the next request comes."""
    return _latency(bench, "S3", SHADOW.model)


def canary_throughput(bench: Bench) -> Row:
    """S2: requests per second of clients that each wait for their answer."""

    def rate(model: str) -> Callable[[], float]:
        return lambda: (
            measure(
                bench.client.endpoint, model, batch_of(256, 1), clients=CLIENTS, seconds=SECONDS
            ).requests_per_second
        )

    a, b = in_turn(rate(CANARY.model), rate("plain"), ROUNDS)
    value = ratio(a, b)
    return Row(
        name="S2",
        what=f"canary ÷ plain, requests/s of {CLIENTS} clients",
        value=value,
        goal="none stated",
        holds=True,
        samples={"canary_requests_per_s": a, "plain_requests_per_s": b},
    )


def _latency(bench: Bench, name: str, model: str) -> Row:
    feed = batch_of(256, 1)

    def median(model: str) -> Callable[[], float]:
        return lambda: (
            1e3 * quantile(timed(lambda: bench.client.predict(model, feed), SECONDS), 0.5)
        )

    a, b = in_turn(median(model), median("plain"), ROUNDS)
    value = ratio(a, b)
    return Row(
        name=name,
        what=f"{model} ÷ plain, p50 of one client",
        value=value,
        goal="none stated",
        holds=True,
        samples={f"{model}_p50_ms": a, "plain_p50_ms": b},
    )
