"""`millrace sign`: lets a person sign a version that has no signature that this home trusts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, prepare, report
from millrace.models.common.digest import digest_of_all
from millrace.models.common.installation import Installation

if TYPE_CHECKING:
    from millrace.models.registry.version_files import ModelVersion


@dataclass(frozen=True)
class Signed:
    """A version that was signed.

    Attributes:
        model: the registered model.
        version: the version's number.
        before: why the version was not trusted before; `signed` if it was trusted.
        statement: what the signature covers: the run, the location of the files, and tags with
            their digests.
        key: the public key of this home, which verifies the signature.
    """

    model: str
    version: int
    before: str
    statement: Mapping[str, str]
    key: str


def sign(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    version: Annotated[int, typer.Argument(min=1, help="The version's number.")],
    as_json: AsJson = False,
) -> None:
    """Check the digests of a version without a trusted signature, and sign the version."""
    chosen = prepare()
    with console.reserve_stdout():
        found = sign_version(chosen.installation(), model, version)
    if as_json:
        console.print_json(found)
        return
    report(f"signed {found.model} version {found.version}, whose state was: {found.before}")
    for name, value in found.statement.items():
        report(f"  {name}: {value}")
    console.print_hint("`millrace release`, if the version has the alias champion")


def sign_version(installation: Installation, model: str, number: int) -> Signed:
    """Fetch a version, check its files against their digests, and sign it.

    A version from an earlier Millrace also gets the tag with the digest of its evidence.

    Raises:
        InputError: there is no such version, it was not made by Millrace, or its files are not
            those that were registered.
        TransientError: MLflow or its artifact store does not answer.
    """
    from millrace.models.registry.mlflow_registry import registry_of
    from millrace.models.registry.version_files import EVIDENCE_TAG

    registry = registry_of(installation)
    version = registry.version(model, number)
    package = registry.fetch_to_sign(version)
    before = registry.trust.fault(version) or "signed"
    evidence = digest_of_all({name: package.folder / name for name in version.kind.evidence_files})
    if EVIDENCE_TAG not in version.tags:
        registry.set_tags(version, {EVIDENCE_TAG: evidence})
        version = replace(version, tags={**version.tags, EVIDENCE_TAG: evidence})
    signed = registry.sign(version)
    return Signed(model, number, before, _statement(signed), registry.trust.keys.public)


def _statement(version: "ModelVersion") -> dict[str, str]:
    from millrace.models.registry.signing import COVERED_TAGS

    covered = {tag: version.tags[tag] for tag in COVERED_TAGS if tag in version.tags}
    return {"run": version.run_id, "source": version.source, **covered}
