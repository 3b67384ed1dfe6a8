"""Compare a sample of a batch job's answers with the live model's, before the job is committed."""

from collections.abc import Callable
from dataclasses import dataclass

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.registry.version_files import Package
from millrace.serving.batch.input.row_sample import Example, ScoredRows, read_examples
from millrace.serving.batch.job import Job
from millrace.serving.batch.monitoring.agreement import Agreement, require_agreement
from millrace.serving.batch.monitoring.live_model import (
    Live,
    compare_examples,
    explain_not_live,
    summarize_error,
)
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import DesiredVersion, derive_state
from millrace.serving.triton.client import TritonClient
from millrace.tasks.kinds.steps import KindSteps, LiveSample, steps_of
from millrace.tasks.progress import log

INDEX_SECONDS = 2.0
"""Time limit for a server to list the models that it has loaded."""


@dataclass(frozen=True)
class LiveCheck:
    """Compares a job with the live model; a `Check` of `millrace.serving.batch.input.row_sample`.

    Attributes:
        job: the job that scored the rows.
        package: the files of the job's version.
        installation: where Triton and the release table are.
        most: share of the sample that may differ; None: the default for the kind of model.
        tell: called with the result, even if the result prevents the commit.
    """

    job: Job
    package: Package
    installation: Installation
    most: float | None
    tell: Callable[[Agreement], None]

    def __call__(self, scored: ScoredRows) -> Agreement:
        """Compare the job with the live model, if the same version is live.

        Raises:
            InputError: too many answers differ.
        """
        found = self._agreement(scored)
        if found.disagreed:
            log.warning("%s", found)
        else:
            log.info("%s", found)
        self.tell(found)
        most = self._sample.share if self.most is None else self.most
        require_agreement(found, most, self.job.model, self.job.version)
        return found

    @property
    def _steps(self) -> KindSteps:
        return steps_of(self.package.version.kind)

    @property
    def _sample(self) -> LiveSample:
        return self._steps.live_sample(self.job)

    def _agreement(self, scored: ScoredRows) -> Agreement:
        """Return how the job compares with the live model, or why it could not be compared."""
        with TritonClient(self.installation.triton[0], checks=True) as client:
            try:
                if reason := self._sample.obstacle or self._obstacle(client):
                    return Agreement(reason=reason)
                live, admitted = self._steps.live_model(
                    self.job, self.package, self.installation, client
                )
                sample = self._examples(scored, live)
            except MillraceError as error:
                return Agreement(reason=summarize_error(error))
            differences, reason = compare_examples(live, sample, self._sample.seconds)
        return Agreement.of(
            differences,
            len(sample),
            admitted=admitted,
            endpoint=client.endpoint.grpc,
            reason=reason,
        )

    def _obstacle(self, client: TritonClient) -> str:
        job = self.job
        state = derive_state(ledger_of(self.installation).releases(job.model))
        desired = DesiredVersion(job.version, job.digest)
        return explain_not_live(client.index(INDEX_SECONDS), state, job.model, desired)

    def _examples(self, scored: ScoredRows, live: Live) -> list[Example]:
        columns = self.job.columns
        try:
            found = list(read_examples(scored, columns, live.answers, self._sample.rows))
        except OSError as error:
            raise InputError(
                "the sampled rows could not be read a second time", seen=error
            ) from error
        if not found:
            raise InputError("none of the sampled rows has an answer")
        return found
