"""Step: from a trained decoder to measured forms and a certificate."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from millrace.export.language.golden_texts import Golden, golden_of
from millrace.export.language.language_variants import Groups
from millrace.export.language.transformers_reference import Reference
from millrace.export.language.variant_folder import FormFolder
from millrace.export.language_candidate import LanguageCandidate
from millrace.export.language_certificate import LanguageCertificate, certified
from millrace.export.select import Gates, beside_unigram, choose
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.common.subprocess_runner import Limits
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.data.snapshots import Snapshot
from millrace.models.language.held_out import HELD_OUT_TOKENS
from millrace.tasks.kinds.language.held_out import pieces_of
from millrace.tasks.kinds.language.language_train import TrainedDecoder, sequences_of
from millrace.tasks.progress import bar, log
from millrace.tasks.retry import step

if TYPE_CHECKING:
    from millrace.export.language.language_exporter import LanguageExporter

CALIBRATION_TOKENS = 32_768


@dataclass(frozen=True)
class ExportedForms:
    """What the export left.

    Attributes:
        candidates: every form that was asked for, measured or with the reason why not.
        chosen: the one to register.
        form: its folder.
        certificate: its evidence.
        golden: what it was asked and answered.
        written: the same of each form that a backend here serves, by name.
        files: the evidence as files, by name.
        reproduction: what makes the forms again.
    """

    candidates: tuple[LanguageCandidate, ...]
    chosen: LanguageCandidate
    form: FormFolder
    certificate: LanguageCertificate
    golden: Golden
    written: dict[str, Golden]
    files: dict[str, Path]
    reproduction: tuple[Path, ...]


@step(timeout_seconds=24 * 3600, retries=0)
def export_forms(
    pipeline: Pipeline,
    places: Installation,
    snapshot: Snapshot,
    trained: TrainedDecoder,
    folder: Path,
) -> ExportedForms:
    """Export, measure, choose and certify.

    Args:
        pipeline: what to export.
        places: where the copies of sequences are.
        snapshot: that was learnt from.
        trained: the decoder and its tokens.
        folder: an empty folder for the files, kept until the version is registered.

    Raises:
        InputError: there is no held-out text, or no prompt of it has one clear answer.
        WorkError: no form could be made that gives finite answers.
    """
    exporter = _exporter(pipeline, places, trained, folder / "forms")
    # while it is there: it goes with the last form that is measured
    transformers, reference = exporter.stage, exporter.reference
    if not reference.texts:
        raise InputError(
            "no prompt of the test split has one clear answer, which a release could ask for",
            seen=f"perplexity {reference.perplexity:,.1f} on {reference.tokens:,} tokens",
            valid="a model whose likeliest token is not tied with another",
            hint="train it longer, or bring more text",
        )
    candidates = _measured(
        pipeline,
        (
            beside_unigram(each, trained.baselines.unigram)
            for each in exporter.measured_candidates()
        ),
    )
    chosen = choose(candidates, pipeline.export.objective) or _nearest(candidates)
    if chosen.reason:
        log.warning("no form holds its limits; %s is the nearest: %s", chosen.name, chosen.reason)
    if chosen.path is None:
        raise WorkError(f"{chosen.name} was chosen, but was not made", seen=chosen.reason)
    form = FormFolder.read(chosen.path)
    written = dict(_written_by(candidates, reference, exporter.limits, places))
    golden = written.get(chosen.name)
    if golden is None:
        raise WorkError(f"{chosen.name} does not go on with the golden prompts")
    certificate = LanguageCertificate(
        model=pipeline.name,
        candidate=chosen.name,
        digest=form.digest,
        dataset=snapshot.name,
        dataset_version=snapshot.version,
        dataset_digest=snapshot.digest,
        max_perplexity_increase=pipeline.export.max_perplexity_increase,
        passed=chosen.passed,
        machine=str(this_machine()),
        machine_kind=this_machine().kind,
        stages=(transformers,),
        forms=certified(candidates),
        tokens_fingerprint=trained.tokens.fingerprint,
        unigram=trained.baselines.unigram,
    )
    files = _written(folder, pipeline, certificate, golden)
    return ExportedForms(
        *(candidates, chosen, form, certificate, golden, written, files), exporter.reproduction()
    )


def _exporter(
    pipeline: Pipeline, places: Installation, trained: TrainedDecoder, folder: Path
) -> "LanguageExporter":
    """Return what makes and measures the forms that a pipeline asks for."""
    from millrace.export.language.language_exporter import LanguageExporter

    held_out = pieces_of(sequences_of(trained.tokens, "test", places), HELD_OUT_TOKENS)
    train = sequences_of(trained.tokens, "train", places)
    return LanguageExporter(
        checkpoint=trained.checkpoint,
        held_out=held_out,
        calibration=lambda: pieces_of(train, CALIBRATION_TOKENS),
        folder=folder,
        threads=this_machine().cores,
        candidates=pipeline.export.candidates,
        limits=pipeline.export.limits.of_process,
        gates=Gates(pipeline.export.max_perplexity_increase, pipeline.export.max_size_mib),
        groups=Groups(pipeline.export.group_size, pipeline.export.ratio),
        vllm_python=places.vllm_python,
    )


def _measured(
    pipeline: Pipeline, found: "Iterable[LanguageCandidate]"
) -> tuple[LanguageCandidate, ...]:
    candidates: list[LanguageCandidate] = []
    with bar("export", len(pipeline.export.candidates), "candidates") as shown:
        for candidate in found:
            candidates.append(candidate)
            shown.update(len(candidates), candidate.name)
            if candidate.reason:
                log.warning("%s is refused: %s", candidate.name, candidate.reason)
    return tuple(candidates)


def _nearest(candidates: tuple[LanguageCandidate, ...]) -> LanguageCandidate:
    """Return the form with the smallest increase of perplexity.

    Raises:
        WorkError: none was measured.
    """
    known = [each for each in candidates if each.stage is not None and each.path is not None]
    if not known:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in candidates)
        raise WorkError("no form of the model can be used", seen=reasons)
    return min(known, key=lambda each: each.stage.perplexity_increase if each.stage else np.inf)


def _written_by(
    candidates: tuple[LanguageCandidate, ...],
    reference: Reference,
    limits: Limits,
    places: Installation,
) -> "Iterator[tuple[str, Golden]]":
    """Yield how each form goes on with the prompts; one that fails at it has told nothing."""
    for each in candidates:
        if each.path is None or not each.is_served:
            continue
        try:
            form = FormFolder.read(each.path)
            cores, python = this_machine().cores, places.vllm_python
            yield each.name, golden_of(form, reference, limits, cores, python)
        except WorkError as error:
            log.warning("%s does not go on with the golden prompts: %s", each.name, error)


def _written(
    folder: Path, pipeline: Pipeline, certificate: LanguageCertificate, golden: Golden
) -> dict[str, Path]:
    texts = {
        "certificate.json": certificate.to_json(),
        "golden.json": golden.to_json(),
        "pipeline.yaml": resolved_yaml(pipeline),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}
