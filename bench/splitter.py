"""S1 to S3: the cost of the traffic splitter during a rollout, beside the plain model.

Both serve the same file in the same server and take turns. The canary's weight is almost zero, so
that the champion answers in both and no answer is computed twice: the difference is the splitter.
"""

from collections.abc import Collection, Iterator
from functools import partial

from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import Bench, batch_of, mlp, own_server
from millrace.models.common.digest import digest_of
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.rollout.rollout import Split
from millrace.serving.rollout.splitting import start_split
from millrace.serving.triton.graph.triton_graph import artifact_of_graph

ROUNDS = 9
SECONDS = 1.0
CLIENTS = 8
CANARY = Split("canary", 1, 2, "canary", 1e-9, 100.0, "sticky_key", 0.01, began=0.0)
SHADOW = Split("shadow", 1, 2, "shadow", 0.0, 100.0, "sticky_key", 0.01, began=0.0)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on one Triton."""
    with own_server() as bench:
        onnx = mlp(bench.repository.staging / "model.onnx", (256, 1024, 1024, 10))
        bench.serve("plain", onnx, ServingSpec())
        for split in (CANARY, SHADOW):
            for version in (1, 2):
                artifact = artifact_of_graph(onnx, digest_of(onnx))
                bench.repository.stage(split.model, version, artifact)
            start_split(split, bench.repository, bench.client)
        measures = {
            "S1": partial(median_latency, bench, "S1", CANARY.model),
            "S2": partial(canary_throughput, bench),
            # The candidate computes while the next request comes.
            "S3": partial(median_latency, bench, "S3", SHADOW.model),
        }
        yield from measure_rows(measures, wanted)


def canary_throughput(bench: Bench) -> Row:
    """S2: requests per second of clients that each wait for their answer."""
    canary, plain = (
        bench.request_rate(model, batch_of(256, 1), CLIENTS, SECONDS)
        for model in (CANARY.model, "plain")
    )
    rounds = measure_in_turn(canary, plain, ROUNDS)
    return Row(
        name="S2",
        what=f"canary ÷ plain, requests/s of {CLIENTS} clients",
        value=rounds.ratio,
        goal="none stated",
        holds=True,
        samples={"canary_requests_per_s": rounds.a, "plain_requests_per_s": rounds.b},
    )


def median_latency(bench: Bench, name: str, model: str) -> Row:
    """S1 and S3: median latency of one client."""
    feed = batch_of(256, 1)
    rounds = measure_in_turn(
        lambda: bench.latency_ms(model, feed, 0.5, SECONDS),
        lambda: bench.latency_ms("plain", feed, 0.5, SECONDS),
        ROUNDS,
    )
    return Row(
        name=name,
        what=f"{model} ÷ plain, p50 of one client",
        value=rounds.ratio,
        goal="none stated",
        holds=True,
        samples={f"{model}_p50_ms": rounds.a, "plain_p50_ms": rounds.b},
    )
