"""Every form of a model, and the best int8 one against fp32 in turns, with one thread each."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.rounds import in_turn, ratio, timed
from bench.row import Row
from millrace.export.onnx.graph_certificate import GraphCandidate, GraphCertificate
from millrace.export.onnx.graph_variants import FP32
from millrace.export.onnx.measure_graph import Evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.inference.onnx_session import OnnxSession
from millrace.tasks.kinds.graph.graph_report import candidates_table

ROUNDS = 9
SECONDS = 0.6


@dataclass(frozen=True)
class Compared:
    """The best int8 form that passed, against fp32.

    Attributes:
        ratio: of their rows per second, median of the rounds.
        best: the int8 form.
        fp32: the other.
        forms: all of them.
        samples: rows per second, round by round.
        table: every form, in Markdown.
    """

    ratio: float
    best: GraphCandidate
    fp32: GraphCandidate
    forms: tuple[GraphCandidate, ...]
    samples: dict[str, list[float]]
    table: str

    def form(self, name: str) -> GraphCandidate:
        """Return one form."""
        return next(each for each in self.forms if each.name == name)


def compared(exporter: Exporter, test: Evidence, dataset: str) -> Compared:
    """Make every form, and let the best int8 one and fp32 take turns in full batches."""
    found = tuple(exporter.candidates(test))
    fp32 = next(each for each in found if each.name == FP32)
    int8 = [each for each in found if "int8" in each.name and each.passed]
    if not int8:
        raise RuntimeError("; ".join(f"{each.name}: {each.reason}" for each in found))
    best = max(int8, key=lambda each: each.speed.rows_per_second if each.speed else 0.0)
    batch = next(test.full())

    def rows_per_second(form: GraphCandidate) -> Callable[[], float]:
        session = OnnxSession(form.path or Path())
        return lambda: len(batch) / statistics.median(timed(lambda: session.answer(batch), SECONDS))

    a, b = in_turn(rows_per_second(best), rows_per_second(fp32), ROUNDS)
    certificate = GraphCertificate(
        model="bench",
        candidate=best.name,
        digest=best.digest,
        dataset=dataset,
        dataset_version=0,
        dataset_digest="",
        passed=True,
        test_rows=len(test.target),
        golden_rows=len(test.golden),
        metric_name="accuracy",
        max_metric_loss=exporter.spec.max_metric_loss,
    )
    samples = {"int8_rows_per_s": a, "fp32_rows_per_s": b}
    table = candidates_table(found, certificate)
    return Compared(ratio(a, b), best, fp32, found, samples, table)


def loss_of(form: GraphCandidate) -> float:
    """Return the relative loss of the metric; NaN where it is not known."""
    loss = form.stage.metric_loss if form.stage else None
    return float("nan") if loss is None else loss


def p4(name: str, what: str, found: Compared) -> Row:
    """Return the row of a model whose best int8 form is to be faster, smaller and as good.

    Args:
        name: of the row.
        what: the model and its data, in words.
        found: its forms.
    """
    size, loss = found.best.size_bytes / found.fp32.size_bytes, loss_of(found.best)
    form = found.best.name.removeprefix("onnx-")
    return Row(
        name=name,
        what=f"{what}, {form} ÷ fp32 rows/s, {size:.2f} of the size, loss {loss:.2%}",
        value=found.ratio,
        goal="≥ 1.6, loss ≤ 1%, size ≤ 0.35",
        holds=found.ratio >= 1.6 and size <= 0.35 and loss <= 0.01,
        samples=found.samples,
        details=found.table,
    )
