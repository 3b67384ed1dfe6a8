"""Certifies a live language model: the answers of the server, and the perplexity of its files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import LanguageCertificate, LiveStage
from millrace.export.language.language_variants import lacking_vllm
from millrace.export.language.measure_language import measure_speed
from millrace.export.language.text_loss import pieces_loss
from millrace.export.language.token_pieces import TokenPieces
from millrace.export.language.variant_folder import VariantFolder
from millrace.export.openvino.decoder_attention import number_of
from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.common.subprocess_runner import Limits
from millrace.models.language.corpus.token_table import open_token_table
from millrace.models.language.held_out import HELD_OUT_TOKENS
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.serving.release.golden_prompts import INEXACT, GoldenPrompts, difference, same_words
from millrace.serving.triton.client import TritonClient
from millrace.tasks.kinds.certified import certificate_of, certified_snapshot, pipeline_of
from millrace.tasks.kinds.language.language_evidence import LanguageEvidence
from millrace.tasks.kinds.language.language_files import LanguageFiles, language_files
from millrace.tasks.kinds.language.language_train import select_pieces, sequences_of
from millrace.tasks.kinds.steps import Table
from millrace.tasks.progress import bar, log

IN_FLIGHT = 32
ROUNDING, OTHERWISE = 1e-4, 0.005
"""Allowed relative differences of a perplexity from the certified one.

`ROUNDING` applies if answers must equal the certified ones, and `OTHERWISE` to other variants.
"""


@dataclass(frozen=True)
class LiveLanguage:
    """A certificate with the live server's answers as its last stage, and the faults found.

    Attributes:
        certificate: the certificate with the stage of the live Triton.
        version: the version that answered.
        endpoint: the address of the server.
        as_certified: how many golden prompts get the certified answer, one at a time and
            concurrently; in words.
        as_transformers: how many golden prompts get the answer that transformers gave, in words;
            None if the answers of transformers were not stored.
        faults: differences from the certificate; empty if there are none.
    """

    certificate: LanguageCertificate
    version: ModelVersion
    endpoint: str
    as_certified: str
    as_transformers: str | None
    faults: tuple[str, ...]

    def table(self) -> Table:
        """Return the stages as a table: perplexity, and agreement of the greedy answers."""
        certificate = self.certificate
        rows = [(stage.name, f"{stage.perplexity:,.4f}", "") for stage in certificate.stages]
        if (stage := certificate.stage(certificate.candidate)) is not None:
            greedy = f"{stage.greedy_equal} of {stage.prompts} as transformers"
            rows.append((f"{stage.name}  ← chosen", f"{stage.perplexity:,.4f}", greedy))
        if (live := certificate.live) is not None:
            greedy = f"as certified: {live.as_certified}"
            if live.as_transformers:
                greedy += f"\nas transformers: {live.as_transformers}"
            rows.append(("triton", f"{live.perplexity:,.4f}" if live.perplexity else "", greedy))
        return Table(("stage", "perplexity", "greedy answers"), rows)


def certify_language(
    installation: Installation, client: TritonClient, package: Package
) -> LiveLanguage:
    """Let the live version continue its golden prompts, and measure its files on held-out text.

    Raises:
        InputError: the snapshot or its tokens differ from the certified ones, or files cannot be
            read.
        WorkError: the model does not answer, or the files need more time or memory than allowed.
        TransientError: Triton does not answer, or is too busy.
    """
    files = language_files(package)
    certificate = certificate_of(package, LanguageCertificate)
    golden = LanguageEvidence(files, installation).golden()
    version, limits = files.version, pipeline_of(files.package).export.limits.of_process
    text = _open_held_out(installation, files, certificate)
    said = f"{counted(len(golden.prompts), 'prompt')}, {text.counted:,} tokens of held-out text"
    log.info("certify: version %s of %s, %s", version.version, version.model, said)
    perplexity = _perplexity(files.folder, text, limits, installation)
    live = certify_live_answers(golden, client, version, at_once(files), perplexity)
    return LiveLanguage(
        certificate=certificate.with_live(live),
        version=version,
        endpoint=client.endpoint.grpc,
        as_certified=live.as_certified,
        as_transformers=live.as_transformers,
        faults=tuple(faults_of(certificate, live, exact=golden.exact)),
    )


def measure_language_speed(package: Package, installation: Installation) -> LanguageSpeed | None:
    """Measure the speed of a version's files on held-out text; None if OpenVINO does not run them.

    Raises:
        InputError: the snapshot or its tokens differ from the certified ones, or files cannot be
            read.
        WorkError: the files cannot be run.
    """
    files = language_files(package)
    if VariantFolder.read(files.folder).engine != "openvino_genai":
        return None
    return measure_speed(
        files.folder,
        _open_held_out(installation, files, certificate_of(package, LanguageCertificate)),
        context=number_of(files.folder, "max_position_embeddings"),
        threads=this_machine().cores,
        limits=pipeline_of(package).export.limits.of_process,
    )


def at_once(files: LanguageFiles) -> int:
    """Return how many prompts to send concurrently, within the version's batch and queue size."""
    generation = pipeline_of(files.package).serving.generation
    return min(IN_FLIGHT, generation.max_num_seqs + generation.max_queue_size)


def certify_live_answers(
    golden: GoldenPrompts,
    client: TritonClient,
    version: ModelVersion,
    in_flight: int,
    perplexity: float | None = None,
) -> LiveStage:
    """Send all golden prompts to a loaded version, one at a time and then `in_flight` at a time.

    Raises:
        WorkError: the version does not answer.
        TransientError: the server does not answer, or is too busy.
    """
    found: list[list[str]] = []
    with bar("certify", 2 * len(golden.prompts), "prompts") as shown:
        for number in (1, in_flight):
            found.append([])
            for answer in golden.generate(client, version.model, version.version, number):
                found[-1].append(answer)
                shown.update(sum(map(len, found)))
    alone, beside = found
    return LiveStage(
        difference=max(difference(golden.answers, answers) for answers in found),
        prompts=len(golden.prompts),
        in_flight=in_flight,
        certified_alone=_alike(golden.answers, alone),
        certified_in_flight=_alike(golden.answers, beside),
        transformers_alone=_as_transformers(golden, alone),
        transformers_in_flight=_as_transformers(golden, beside),
        perplexity=perplexity,
    )


def faults_of(certificate: LanguageCertificate, live: LiveStage, *, exact: bool) -> Iterator[str]:
    """Yield a message for each difference from the certificate.

    Args:
        certificate: the certificate, as it was registered.
        live: the live server's answers, and the perplexity of the registered files.
        exact: whether each answer must equal the certified one and that of transformers.
    """
    name = certificate.candidate
    stage = certificate.stage(name)
    if stage is None:
        yield f"the certificate has no measurements of the variant {name}"
        return
    if exact:
        yield from _inexact(name, live)
    elif not live.difference <= INEXACT:
        yield (
            f"triton: {live.difference:.0%} of the answers differ from the certified ones, and "
            f"at most {INEXACT:.0%} may differ for {name}"
        )
    known, now = stage.perplexity, live.perplexity
    if now is not None and not abs(now - known) <= (ROUNDING if exact else OTHERWISE) * known:
        yield f"file: perplexity {now} on the held-out text, and {name} was certified with {known}"
    if not certificate.passed:
        yield f"{name} did not pass its gates when it was certified"


def _inexact(name: str, live: LiveStage) -> Iterator[str]:
    """Yield a message if answers differ from the certified ones, or from those of transformers."""
    whole, rule = live.prompts, f"but all prompts must be, for the variant {name}"
    if min(live.certified_alone, live.certified_in_flight) < whole:
        yield f"triton: {live.as_certified} are answered as certified, {rule}"
    told = (live.transformers_alone, live.transformers_in_flight)
    if any(count is not None and count < whole for count in told):
        yield f"triton: {live.as_transformers} are answered as by transformers, {rule}"


def _alike(wanted: tuple[str, ...], found: list[str]) -> int:
    return sum(one == other for one, other in zip(wanted, found, strict=True))


def _as_transformers(golden: GoldenPrompts, found: list[str]) -> int | None:
    if not golden.transformers:
        return None
    return sum(map(same_words, golden.transformers, found))


def _open_held_out(
    installation: Installation, files: LanguageFiles, certificate: LanguageCertificate
) -> TokenPieces:
    """Return the text that the version's perplexity was certified on.

    Raises:
        InputError: the snapshot differs from the certified one, or its tokens no longer exist.
    """
    certified_snapshot(installation, certificate)
    if not certificate.tokens_fingerprint or not certificate.stages:
        raise InputError(
            "the certificate does not say which tokens the perplexity was measured on",
            hint="run the pipeline again",
        )
    table = open_token_table(installation, certificate.dataset, certificate.tokens_fingerprint)
    pieces = select_pieces(sequences_of(table, "test", installation), HELD_OUT_TOKENS)
    context = number_of(files.folder, "max_position_embeddings")
    return pieces.first(certificate.stages[0].tokens, context)


def _perplexity(
    variant: Path, text: TokenPieces, limits: Limits, installation: Installation
) -> float | None:
    """Return the perplexity of the registered files; None if this machine lacks their engine."""
    of_vllm = VariantFolder.read(variant).engine == "vllm"
    if of_vllm and (reason := lacking_vllm(installation.vllm_python)):
        log.warning("the perplexity of the registered files is not measured: %s", reason)
        return None
    return pieces_loss(variant, text, limits, installation.vllm_python).perplexity
