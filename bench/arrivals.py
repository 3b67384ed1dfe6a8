"""AR32, AR32R: what the guard's record of arrivals costs, in requests/s with it ÷ without it.

Two servers behind their guards serve the same small model, and take turns.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial

from bench.guard import MODEL, WIDTH, load_grpc
from bench.http_clients import measure_load, name_client
from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import Bench, batch_of, few_digits, mlp, own_server
from millrace.models.config.serving_spec import ServingSpec

ROUNDS, CLIENTS, SECONDS = 11, 32, 2
GOAL = 0.95


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on a Triton whose guard records, and one whose guard does not."""
    with ExitStack() as stack:
        recording = stack.enter_context(own_server())
        silent = stack.enter_context(own_server(records_arrivals=False))
        for each in (recording, silent):
            onnx = mlp(each.repository.staging / "small.onnx", (WIDTH, 128, 10))
            each.serve(MODEL, onnx, ServingSpec())
        measures = {
            "AR32": partial(beside, "AR32", f"JSON by HTTP, {name_client()}", load_http),
            "AR32R": partial(beside, "AR32R", "gRPC", lambda each: load_grpc(CLIENTS, each)[1]),
        }
        bound = {name: partial(each, recording, silent) for name, each in measures.items()}
        yield from measure_rows(bound, wanted)


def load_http(bench: Bench) -> float:
    """Return the requests/s of clients that send a row as JSON over HTTP."""
    request = bench.http_request(MODEL, few_digits(batch_of(WIDTH, 1)["x"]))
    return measure_load(request, CLIENTS, SECONDS).requests_per_second


def beside(
    name: str, what: str, load: Callable[[Bench], float], recording: Bench, silent: Bench
) -> Row:
    """Compare the requests/s of both servers, in turn."""
    rounds = measure_in_turn(lambda: load(recording), lambda: load(silent), ROUNDS)
    return Row(
        name=name,
        what=f"requests/s with the record of arrivals ÷ without, {what}, clients: {CLIENTS}",
        value=rounds.ratio,
        goal=f"≥ {GOAL}",
        holds=rounds.ratio >= GOAL,
        samples={"recording": rounds.a, "silent": rounds.b},
    )
