"""Receipts of batch jobs: whether a partition is up to date, without Ray, MLflow and Prefect.

A job writes down what its fingerprint followed from: the pipeline, the code, the champion, the
release table, the input. If all of that is the same later, the fingerprint is the same, and the
partition's commit shows whether that job wrote its content. Nothing else is concluded from a
receipt: if anything differs or cannot be read, the job itself decides.
"""

import json
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import deltalake
from deltalake.exceptions import DeltaError

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation, has_jobs_api
from millrace.models.common.private_files import replace_private
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import PREDICTIONS
from millrace.models.data.sources.delta_files import manifest_of
from millrace.models.data.sources.find_files import RECENT_NS, strip_file_scheme
from millrace.models.registry.registry_lookup import (
    LookupUnavailable,
    look_up_alias,
    look_up_version,
)
from millrace.models.registry.signing import SigningKeys
from millrace.models.registry.version_files import CHAMPION, ModelVersion
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.fingerprint import code_digest, digest_of_json, digest_of_sources
from millrace.serving.batch.input.find_input import find_paths, list_files
from millrace.serving.batch.job_state import hold_job, job_state_of
from millrace.serving.batch.monitoring.batch_report import FINGERPRINT, BatchReport
from millrace.tasks.batch.score_input import input_of
from millrace.tasks.progress import log

KEPT = timedelta(days=45)
Facts = dict[str, Any]
"""Values, ready for JSON, that are equal as long as nothing has changed."""


@dataclass(frozen=True)
class ScoreRequest:
    """What the user asks for: the arguments of `score_rows`."""

    pipeline: Pipeline
    installation: Installation
    source: str | None
    date: str
    version: int | None = None

    @property
    def receipt(self) -> Path:
        """The file of this request's receipt."""
        request = {
            "pipeline": self.pipeline.model_dump(mode="json"),
            "folder": str(self.pipeline.folder),
            "source": self.source and [self.source, str(Path.cwd())],
            "version": self.version,
            "table": self.partition.table,
        }
        name = f"{self.pipeline.name}-{self.date}-{digest_of_json(request)[:16]}.json"
        return self.installation.receipts / name

    @property
    def partition(self) -> Partition:
        """The partition of the predictions, without the id of a job."""
        table = self.installation.table(PREDICTIONS, self.pipeline.name)
        return Partition(table, "date", self.date, "")


@dataclass(frozen=True)
class Receipt:
    """What a job followed from.

    Attributes:
        facts: everything that the fingerprint depends on, as it was read before the job.
        version: number of the version that scores.
        fingerprint: the job's fingerprint.
        is_reported: whether the job is committed, and reported in MLflow.
    """

    facts: Facts
    version: int
    fingerprint: str
    is_reported: bool = False

    @classmethod
    def read(cls, request: ScoreRequest) -> Self | None:
        """Return the receipt of a request; None if there is none that can be read."""
        try:
            return cls(**json.loads(request.receipt.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, request: ScoreRequest) -> None:
        """Write the receipt, and delete old ones; a folder that cannot be written has none."""
        with suppress(OSError):
            request.receipt.parent.mkdir(parents=True, exist_ok=True)
            replace_private(request.receipt, json.dumps(asdict(self)))
            oldest = time.time() - KEPT.total_seconds()
            for file in request.receipt.parent.glob("*.json"):
                if file.stat().st_mtime < oldest:
                    file.unlink(missing_ok=True)


def find_matching_receipt(request: ScoreRequest) -> Receipt | None:
    """Return the receipt of a request if all that it followed from is the same now.

    Args:
        request: the request.
    """
    receipt = Receipt.read(request)
    if receipt is None or has_jobs_api(request.installation.ray_address):
        return None
    now = read_facts(request)
    if now is None:
        return None
    try:
        scores = look_up_version(
            request.installation.tracking_uri, request.pipeline.name, receipt.version
        )
    except LookupUnavailable:
        return None
    return receipt if receipt.facts == with_version(now, scores) else None


def find_stored_report(request: ScoreRequest, receipt: Receipt) -> BatchReport | None:
    """Return the report of the partition's commit if nothing of the job is left to do.

    Args:
        request: the request.
        receipt: what `find_matching_receipt` returned.

    Raises:
        TransientError: the same job is running.
    """
    partition, fingerprint = request.partition, receipt.fingerprint
    commit = partition.read_commit()
    is_left = job_state_of(partition, fingerprint).folder.exists()
    if receipt.is_reported and not is_left and commit.get(FINGERPRINT) == fingerprint:
        return BatchReport.of_commit(commit)
    with hold_job(partition, fingerprint):
        return None


def with_version(facts: Facts, scores: ModelVersion) -> Facts:
    """Return facts with the version that scores."""
    return {**facts, "scores": _describe(scores)}


def read_facts(request: ScoreRequest) -> Facts | None:
    """Return what a job's fingerprint depends on, except for the version that scores.

    Args:
        request: the request.

    Returns:
        None if something cannot be read, or may change without a trace: a file that was written in
        the last seconds, a missing champion, whose grace ends with time, or vLLM's own Python.
    """
    if request.installation.vllm_python is not None:
        return None
    try:
        return {**read_approval_facts(request), **_read_input_facts(request)}
    except (MillraceError, LookupUnavailable, DeltaError, OSError):
        return None


def read_approval_facts(request: ScoreRequest) -> Facts:
    """Return what the choice of the version depends on.

    Raises:
        LookupUnavailable: there is no champion, or only MLflow can read the registry.
        OSError: a file cannot be read.
    """
    installation, model = request.installation, request.pipeline.name
    keys = SigningKeys(installation.home)
    trusted = (keys.public_file, keys.trusted_file, keys.earlier_file, *installation.pipeline_files)
    return {
        "champion": _describe(look_up_alias(installation.tracking_uri, model, CHAMPION)),
        "releases": _describe_table(installation.table("releases")),
        "trust": [
            *installation.trusted_signers,
            *(digest_of_json(file.read_text()) if file.exists() else "" for file in trusted),
        ],
    }


def _read_input_facts(request: ScoreRequest) -> Facts:
    installation, pipeline = request.installation, request.pipeline
    return {
        "code": [code_digest(), digest_of_sources(("tasks", "export")), *_describe_python()],
        "dataset": _describe_table(installation.table("datasets", pipeline.name)),
        "input": _describe_input(input_of(pipeline, installation, request.source, request.date)),
    }


def _describe(version: ModelVersion) -> Facts:
    return {**asdict(version), "aliases": sorted(version.aliases), "tags": dict(version.tags)}


def _describe_table(table: str) -> Facts | None:
    if not deltalake.DeltaTable.is_deltatable(table):
        return None
    return manifest_of(deltalake.DeltaTable(table))


def _describe_input(source: str) -> list[Any]:
    """Return the files of an input with size and modification time, or the version of a table.

    Raises:
        OSError: a file has no modification time, or one of the last seconds.
        MillraceError: the input cannot be found.
    """
    found = find_paths(strip_file_scheme(source))
    if found.table is not None:
        return [manifest_of(found.table)]
    files = [file for file, _ in list_files(source, found)]
    newest = max((file.modified or time.time_ns() for file in files), default=0)
    if time.time_ns() - newest < RECENT_NS:
        raise OSError("a file of the input may still change")
    return [[file.path, file.size, file.modified] for file in files]


def _describe_python() -> list[str]:
    """Return the interpreter, and when packages were last installed or removed."""
    packages = Path(sysconfig.get_paths()["purelib"])
    return [sys.executable, sys.version, str(packages.stat().st_mtime_ns)]


def warn_of_dead_letters(report: BatchReport) -> None:
    """Log how many rows a job could not score."""
    if report.dead:
        log.warning(
            "rows without a prediction: %s; see the table %s", report.dead, report.dead_letters
        )
