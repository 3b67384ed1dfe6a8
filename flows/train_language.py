"""The line of a language model, from a snapshot to a registered version."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millrace.export.language_candidate import LanguageCandidate
from millrace.export.language_certificate import LanguageCertificate
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.corpus.ngram import Baselines
from millrace.models.language.corpus.token_table import TokenTable
from millrace.models.registry.gates import Promotion
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.language.draft_model import check_draft
from millrace.tasks.kinds.language.fetch_base import fetch_base
from millrace.tasks.kinds.language.language_export import export_forms
from millrace.tasks.kinds.language.language_register import log_forms, promote_form, register_form
from millrace.tasks.kinds.language.language_report import publish_language
from millrace.tasks.kinds.language.language_train import tokenize_documents, train_decoder
from millrace.tasks.run_names import name_run
from millrace.tasks.tracking_outage import await_mlflow


@dataclass(frozen=True)
class LanguageOutcome:
    """What a run of a language model came to.

    Attributes:
        snapshot: what was learnt from.
        tokens: its token table.
        baselines: perplexities on the test split of simpler models, and of the base.
        candidates: the forms that were measured.
        certificate: evidence of the chosen one.
        version: the registered version.
        promotion: its aliases, and why.
        run: the MLflow run.
        recoveries: the steps that were done at each recovery from a failure of workers.
    """

    snapshot: Snapshot
    tokens: TokenTable
    baselines: Baselines
    candidates: tuple[LanguageCandidate, ...]
    certificate: LanguageCertificate
    version: ModelVersion
    promotion: Promotion
    run: TrackedRun
    recoveries: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints: no column statistics, and no paths that are gone by then."""
        facts = ("name", "uri", "version", "digest", "rows", "created", "quarantined", "reasons")
        return {
            "snapshot": {name: getattr(self.snapshot, name) for name in facts},
            "tokens": {
                "version": self.tokens.version,
                "fingerprint": self.tokens.fingerprint,
                "splits": self.tokens.splits,
            },
            "baselines": self.baselines,
            "candidates": [replace(candidate, path=None) for candidate in self.candidates],
            "certificate": self.certificate,
            "version": self.version,
            "promotion": self.promotion,
            "run": self.run,
            "recoveries": self.recoveries,
        }


def train_language(
    pipeline: Pipeline, places: Installation, snapshot: Snapshot, run: TrackedRun
) -> LanguageOutcome:
    """Tokenize, train, export, certify, register and decide on the aliases.

    Args:
        pipeline: of a `causal_lm`, its model pinned.
        places: where everything is.
        snapshot: to learn from.
        run: the open run.
    """
    based = fetch_base(pipeline, places)
    tokens = tokenize_documents(based, places, snapshot)
    check_draft(pipeline, places, tokens)
    trained = train_decoder(based, places, tokens, run)
    with tempfile.TemporaryDirectory(dir=places.staging) as folder:
        exported = export_forms(pipeline, places, snapshot, trained, Path(folder))
        await_mlflow(places.tracking_uri)
        log_forms(trained, exported, run)
        await_mlflow(places.tracking_uri)
        version = register_form(pipeline, places, snapshot, trained, exported, run)
        await_mlflow(places.tracking_uri)
        promotion = promote_form(pipeline, places, exported, version)
    name_run(f"train {pipeline.name} {version.version}", pipeline.name)
    publish_language(snapshot, trained, exported, version, promotion, run)
    return LanguageOutcome(
        snapshot,
        tokens,
        trained.baselines,
        exported.candidates,
        exported.certificate,
        version,
        promotion,
        run,
        trained.recoveries,
    )
