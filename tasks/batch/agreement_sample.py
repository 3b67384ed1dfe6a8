"""A sample of a batch job's rows, asked of the live model before the job is committed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.registry.version_files import LanguagePackage, Package
from millrace.serving.batch.input.row_sample import Example, ScoredRows, read_examples
from millrace.serving.batch.monitoring.agreement import Agreement, require_agreement
from millrace.serving.batch.monitoring.live_model import (
    Live,
    LivePrompts,
    LiveRows,
    compare_examples,
    explain_not_live,
    summarize_error,
)
from millrace.serving.batch.prompts.prompt_rows import Prompts
from millrace.serving.batch.row_job import RowJob
from millrace.serving.release.golden_prompts import INEXACT
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import DesiredVersion, standing_of
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language.stream_request import Messages, Piece, Sampling
from millrace.tasks.kinds.graph.graph_evidence import GraphEvidence
from millrace.tasks.kinds.language.language_evidence import LanguageEvidence
from millrace.tasks.progress import log

INDEX_SECONDS = 2.0
"""For a server to say what it has loaded."""


@dataclass(frozen=True)
class Much:
    """How much of a job is compared.

    Attributes:
        rows: of its input.
        seconds: for all of them.
        most: share that may differ, where the pipeline file does not say.
    """

    rows: int
    seconds: float
    most: float


ROWS, PROMPTS = Much(64, 10.0, 0.05), Much(8, 30.0, 0.25)


@dataclass(frozen=True)
class LiveCheck:
    """Compares a job with the live model; a `millrace.serving.batch.input.row_sample.Check`.

    Attributes:
        job: what scored.
        package: its version's files.
        places: where Triton and the release table are.
        most: share of the sample that may differ; None for the usual.
        tell: takes what was found, also if it keeps the job from its commit.
    """

    job: RowJob | Prompts
    package: Package
    places: Installation
    most: float | None
    tell: Callable[[Agreement], None]

    def __call__(self, scored: ScoredRows) -> Agreement:
        """Compare, unless nothing that could be compared with is live.

        Raises:
            InputError: too much differs.
        """
        found = self._agreement(scored)
        if found.disagreed:
            log.warning("%s", found)
        else:
            log.info("%s", found)
        self.tell(found)
        most = self._much.most if self.most is None else self.most
        require_agreement(found, most, self.job.model, self.job.version)
        return found

    @property
    def _much(self) -> Much:
        return PROMPTS if isinstance(self.job, Prompts) else ROWS

    def _agreement(self, scored: ScoredRows) -> Agreement:
        """Return how the job compares; why it does not where anything at all is in the way."""
        with TritonClient(self.places.triton[0]) as client:
            try:
                if reason := self._obstacle(client):
                    return Agreement(reason=reason)
                live, admitted = self._live(client)
                sample = self._sample(scored, live)
            except MillraceError as error:
                return Agreement(reason=summarize_error(error))
            differences, reason = compare_examples(live, sample, self._much.seconds)
        return Agreement.of(
            differences,
            len(sample),
            admitted=admitted,
            endpoint=client.endpoint.grpc,
            reason=reason,
        )

    def _obstacle(self, client: TritonClient) -> str:
        job = self.job
        if isinstance(job, Prompts) and job.sampling.temperature > 0:
            return "its answers are drawn by chance"
        standing = standing_of(ledger_of(self.places).releases(job.model))
        wish = DesiredVersion(job.version, job.digest)
        return explain_not_live(client.index(INDEX_SECONDS), standing, job.model, wish)

    def _sample(self, scored: ScoredRows, live: Live) -> list[Example]:
        columns = self.job.columns
        try:
            found = list(read_examples(scored, columns, live.answers, self._much.rows))
        except OSError as error:
            raise InputError("the rows cannot be read again", seen=error) from error
        if not found:
            raise InputError("none of the rows that were looked at has an answer")
        return found

    def _live(self, client: TritonClient) -> tuple[Live, float]:
        """Return the live model, and the share of its answers that it may give otherwise."""
        job, package = self.job, self.package
        if isinstance(job, RowJob):

            def predict(request: Mapping[str, Array], seconds: float) -> Mapping[str, Array]:
                return client.predict(job.model, request, version=job.version, timeout=seconds)

            difference = GraphEvidence(package.graph, self.places).expected().difference
            # The job's answers and the live ones may both be so far from PyTorch's.
            return LiveRows(job, predict, 2 * difference), 0.0

        def complete(prompt: str | Messages, sampling: Sampling, seconds: float) -> Piece:
            return client.streams.complete(
                job.model, prompt, sampling, version=job.version, deadline=seconds
            )

        exact = (
            isinstance(package, LanguagePackage)
            and LanguageEvidence(package, self.places).golden().exact
        )
        return LivePrompts(job, complete, exact), 0.0 if exact else INEXACT
