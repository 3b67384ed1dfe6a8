"""P6, P7 and P8: batch jobs beside a loop, without resume; of prompts see `bench/prompts.py`.

P6 and P7 score rows of 64 numbers with a network of two hidden layers. Both sides of P6 read the
same Parquet file, commit to a Delta table, and have as many threads as there are cores: the job in
one actor each, the loop in one session. Ray is started before, as for the second job of a night.
"""

import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from bench.measure import Rounds, Row, attempt, measure_in_turn
from bench.prompts import prompts_row
from millrace.models.common.hardware import this_machine
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.ray.cluster import connect_to_ray
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions, Target, score
from tests.chaos.batch_kills import asked, content, prepare, run
from tests.integration.graphs import proto

ROUNDS = 5
ROWS, WIDTH, HIDDEN = 2_000_000, 64, 768
BATCH = 1024
DATE = "2026-01-05"


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    cores = this_machine().cores
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        if "P7" in wanted:  # its killed jobs start a Ray of their own
            killed = attempt("P7", lambda: count_redone(folder))
        opened.enter_context(connect_to_ray("local", cores))
        stand = Stand(folder, cores)
        if "P6" in wanted:
            yield attempt("P6", lambda: beside_a_loop(stand))
        if "P7" in wanted:
            yield killed if killed.error else attempt("P7", lambda: with_resume(stand, killed))
        if "P8" in wanted:
            yield attempt("P8", lambda: prompts_row(folder, cores))


@dataclass
class Stand:
    """Rows, a network, and tables to write to.

    Attributes:
        folder: takes all files.
        actors: number of actors of a job.
    """

    folder: Path
    actors: int

    def __post_init__(self) -> None:
        chance = np.random.default_rng(0)
        cells = chance.normal(size=(ROWS, WIDTH)).astype(np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(cells.ravel()), WIDTH)
        table = pa.table({"id": np.arange(ROWS), "v": vectors.cast(pa.list_(pa.float32()))})
        self.rows = self.folder / "rows.parquet"
        pq.write_table(table, self.rows, row_group_size=50_000)
        self.onnx = self.folder / "network.onnx"
        self.onnx.write_bytes(_network(chance))
        self.encoding = Encoding((Feature("v", "vector", width=WIDTH),), "t")
        self._runs = 0

    def _table(self) -> str:
        self._runs += 1
        return str(self.folder / f"table{self._runs}")

    def job(self, *, resume: bool = True) -> float:
        """Score in a batch job, and return its seconds."""
        table, start = self._table(), time.perf_counter()
        job = RowJob("m", 1, "d", self.onnx, self.encoding, ("id",), batch_size=BATCH)
        options, target = (
            RunOptions(self.actors, resume=resume),
            Target(table, f"{table}-dead", DATE),
        )
        score(open_input(str(self.rows), job), job, target, options)
        return time.perf_counter() - start

    def loop(self) -> float:
        """Score in a loop, and return its seconds."""
        table, start = self._table(), time.perf_counter()
        session, meaning = OnnxSession(self.onnx, self.actors), answers_of(self.encoding)
        found = []
        for batch in pq.ParquetFile(self.rows).iter_batches(BATCH):
            answers = session.answer(self.encoding.encode(pa.table({"v": batch["v"]})))
            columns = {
                "_key": batch["id"].cast(pa.string()),
                "prediction": pa.array(meaning.prediction(answers), pa.float64()),
                "score": pa.array(meaning.score(answers), pa.float32()),
                "date": pa.repeat(DATE, batch.num_rows),
            }
            found.append(pa.table(columns))
        deltalake.write_deltalake(table, pa.concat_tables(found), partition_by=["date"])
        return time.perf_counter() - start


def beside_a_loop(stand: Stand) -> Row:
    """P6: rows per second of a job ÷ of a loop."""
    rounds = measure_in_turn(stand.job, stand.loop, ROUNDS)
    speedup = Rounds(rounds.b, rounds.a).ratio
    return Row(
        name="P6",
        what=f"rows/s of a batch job, commit included ÷ a loop of one's own, {ROWS:,} rows",
        value=speedup,
        goal="≥ 0.85",
        holds=speedup >= 0.85,
        samples={"job_s": rounds.a, "loop_s": rounds.b},
    )


def with_resume(stand: Stand, killed: Row) -> Row:
    """P7: wall time with resume ÷ without, and the cost of a kill half way."""
    rounds = measure_in_turn(stand.job, lambda: stand.job(resume=False), ROUNDS)
    redone = killed.value
    return Row(
        name="P7",
        what=f"wall time with resume ÷ without, {ROWS:,} rows; after a kill half way "
        f"{redone:.1%} of the rows are redone",
        value=rounds.ratio,
        goal="≤ 1.05, and ≤ 10%",
        holds=rounds.ratio <= 1.05 and redone <= 0.1,
        samples={"with_s": rounds.a, "without_s": rounds.b, **killed.samples},
    )


def count_redone(folder: Path) -> Row:
    """Kill a job half way, and count the rows that its models score twice.

    In a shorter job the share is larger: until the actors notice that the driver is gone, each goes
    on to the end of its piece, 50,000 rows at most, and writes nothing of it.
    """
    shares = []
    for number in range(3):
        place = folder / f"killed{number}"
        place.mkdir()
        prepare(place, ROWS)
        first, again = run(place, "driver", 0.5), run(place)
        if not first.was_killed or again.resumed is None:
            raise RuntimeError(f"the job was not killed, or not resumed: {again.said}")
        shares.append(asked(place) / content(place)[0] - 1)
    return Row("P7", "", max(shares), "", holds=True, samples={"redone": shares})


def _network(chance: np.random.Generator) -> bytes:
    sizes = (WIDTH, HIDDEN, HIDDEN, 1)
    nodes, weights, read = [], [], "features"
    for number, shape in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        last = number == len(sizes) - 2
        out = "answers" if last else f"hidden{number}"
        nodes.append(helper.make_node("MatMul", [read, f"w{number}"], [out]))
        weights.append((f"w{number}", chance.normal(size=shape).astype(np.float32) / 8))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"relu{number}"]))
        read = f"relu{number}"
    ends = (("features", WIDTH), ("answers", 1))
    taken, given = ((name, TensorProto.FLOAT, ["rows", width]) for name, width in ends)
    return proto(nodes, [taken], [given], weights)
