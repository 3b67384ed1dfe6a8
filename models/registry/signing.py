"""Signatures of registered versions, and which versions a home folder trusts.

Everybody who reaches the registry may write to it. So a version is signed when it is registered,
with an Ed25519 key of the home folder. A version that is not signed by a trusted key is neither
served, scored with nor trained from. The signed statement contains the version's name and number,
so that a copy under another name or number is not signed; the digests of all files that are read;
and the place of the files, so that nothing is fetched from a place that somebody else chose.

    HOME/signing.key         private key, mode 0600, created once
    HOME/signing.pub         public key, to give to other homes
    HOME/trusted_signers     public keys of other homes, one per line, each followed by a comment
    HOME/released_unsigned   versions that were live before this home had a key, see
                             `SigningKeys.made`

`promotion.require.signed: false` has an effect only in pipeline files of the user who runs the
command: a file in MILLRACE_PIPELINES, or the file that was given to the command. It has no effect
in the pipeline file that is stored with a version, because whoever made the version wrote that
file.
"""

import base64
import binascii
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.common.private_files import read_or_create_secret, replace_private
from millrace.models.config.serving_spec import RequireSpec
from millrace.models.registry.model_names import require_model_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from millrace.models.config.pipeline import Pipeline
    from millrace.models.registry.version_files import ModelVersion

SIGNATURE_TAG = "millrace.signature"
FORMAT = "v2"
COVERED_TAGS = (
    *("millrace.base", "millrace.base_revision", "millrace.candidate", "millrace.certificate"),
    *("millrace.checkpoint_digest", "millrace.dataset", "millrace.dataset_digest"),
    *("millrace.digest", "millrace.draft", "millrace.evidence", "millrace.kind"),
    "millrace.tokenizer_digest",
)
"""Tags that the signature covers, because releases, batch jobs and training rely on them.

Other tags, such as a status, change after the version is signed.
"""
EVIDENCE_TAG = "millrace.evidence"
UNSIGNED = "it is not signed"


def statement(version: "ModelVersion") -> bytes:
    """Return the statement that a version's signature covers, as canonical JSON."""
    values = {
        "format": FORMAT,
        "model": version.model,
        "version": version.version,
        "run_id": version.run_id,
        "source": version.source,
        "tags": {tag: version.tags[tag] for tag in COVERED_TAGS if tag in version.tags},
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class SigningKeys:
    """The keys of one home folder.

    Attributes:
        home: the home folder.
        others: public keys that the home trusts, in addition to its own key and to the keys in
            `trusted_signers`.
    """

    home: Path
    others: tuple[str, ...] = ()

    @property
    def private_file(self) -> Path:
        """File of the private key."""
        return self.home / "signing.key"

    @property
    def public_file(self) -> Path:
        """File of the public key."""
        return self.home / "signing.pub"

    @property
    def trusted_file(self) -> Path:
        """File of the public keys of other homes."""
        return self.home / "trusted_signers"

    @property
    def earlier_file(self) -> Path:
        """File of the versions that were live before the home had a key."""
        return self.home / "released_unsigned"

    def made(self, live_before: Callable[[], Iterable[tuple[str, int, str]]]) -> None:
        """Create the key if there is none yet.

        Versions that were live in this home before it had a key stay trusted. Their list is written
        only once, when the key is created, so that no later version gets into it.

        Args:
            live_before: function that returns model, version and digest of every version that was
                ever live in this home.
        """
        if not self.private_file.exists():
            lines = [f"{model} {version} {digest}\n" for model, version, digest in live_before()]
            if lines:
                replace_private(self.earlier_file, "".join(sorted(lines)))
            _ = self.public

    @property
    def public(self) -> str:
        """The home's own public key, base64; the key pair is created if there is none.

        Raises:
            WorkError: the key cannot be read or written.
        """
        public = _encoded(self._private().public_key().public_bytes_raw())
        file = self.public_file
        if not file.exists():
            replace_private(file, f"{public} of {self.home}\n")
        return public

    def trusted(self) -> frozenset[str]:
        """Return the public keys that this home trusts."""
        own = (self.public,) if self.private_file.exists() else ()
        return frozenset({*own, *self.others, *_first_words(self.trusted_file)})

    def sign(self, version: "ModelVersion") -> str:
        """Return the signature of a version, the value of `SIGNATURE_TAG`."""
        return self.sign_statement(statement(version))

    def sign_statement(self, said: bytes) -> str:
        """Return the signature of a statement, with the public key."""
        signature = self._private().sign(said)
        return f"{FORMAT}.{self.public}.{_encoded(signature)}"

    def was_live_before(self, version: "ModelVersion") -> bool:
        """Return whether a version was live in this home before the home had a key."""
        line = f"{version.model} {version.version} {version.digest}"
        return bool(version.digest) and line in _lines(self.earlier_file)

    def _private(self) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            text = read_or_create_secret(self.private_file, _new_private_key)
            return Ed25519PrivateKey.from_private_bytes(_decoded(text.strip()))
        except (OSError, ValueError) as error:
            raise WorkError(
                "the signing key of the Millrace home folder cannot be read or written",
                seen=f"{self.private_file}: {error}",
                valid="a file of 44 characters that only this user may read",
                hint="restore it from a backup; with a new key every version must be signed again: "
                "millrace sign MODEL VERSION",
            ) from error


def fault_of_signature(version: "ModelVersion", trusted: Collection[str]) -> str | None:
    """Return why a version is not signed by a trusted key; None if it is.

    Args:
        version: the version, with the tags that the registry has now.
        trusted: the trusted public keys, base64.
    """
    signature = version.tags.get(SIGNATURE_TAG, "")
    if not signature:
        return UNSIGNED if version.digest else "it has no digest and is not signed"
    fault = fault_of_statement(signature, statement(version), trusted)
    if fault is None and not version.tags.get(EVIDENCE_TAG):
        return f"its evidence files have no digest (the tag {EVIDENCE_TAG} is missing)"
    return fault


def fault_of_statement(signature: str, said: bytes, trusted: Collection[str]) -> str | None:
    """Return why a statement is not signed by a trusted key; None if it is.

    Args:
        signature: the signature, from `SigningKeys.sign_statement`.
        said: the statement.
        trusted: the trusted public keys, base64.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    words = signature.split(".")
    if len(words) != 3 or words[0] != FORMAT:
        return "its signature cannot be read"
    _, public, value = words
    if public not in trusted:
        return f"it is signed by a key that this home does not trust, {public[:44]}"
    try:
        key = Ed25519PublicKey.from_public_bytes(_decoded(public))
        key.verify(_decoded(value), said)
    except (InvalidSignature, ValueError):
        return "its signature is for something else: another version, source, files or tags"
    return None


def _new_private_key() -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return _encoded(Ed25519PrivateKey.generate().private_bytes_raw())


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, UnicodeError) as error:
        raise ValueError("it is not base64") from error


def _lines(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text().splitlines())
    except FileNotFoundError:
        return frozenset()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read", seen=error, valid="a text file with one entry per line"
        ) from error


def _first_words(file: Path) -> frozenset[str]:
    lines = (line.split() for line in _lines(file))
    return frozenset(words[0] for words in lines if words and not words[0].startswith("#"))


@dataclass(frozen=True)
class Trust:
    """Decides whether a version may be used.

    Attributes:
        keys: the home's keys.
        files: function that returns the pipeline files of the home's owner.
        given: the pipeline that was given to a command; None if there is none.
    """

    keys: SigningKeys
    files: Callable[[], tuple[Path, ...]] = tuple
    given: "Pipeline | None" = None

    def fault(self, version: "ModelVersion") -> str | None:
        """Return why a version is not trusted; None if it is."""
        fault = fault_of_signature(version, self.keys.trusted())
        if fault is not None and self.keys.was_live_before(version):
            return None
        return fault

    def require(self, version: "ModelVersion") -> str:
        """Return the warning about a version that may be used; empty if the version is signed.

        Raises:
            InputError: the model's name is not allowed, or the version is not signed and the owner
                of this home requires a signature.
        """
        require_model_name(version.model)
        fault = self.fault(version)
        if fault is None:
            return ""
        if not self.owners_requirement(version.model).signed:
            return f"{fault}, but it is used, because promotion.require.signed is false"
        raise InputError(
            f"{version.model} version {version.version} is not trusted: {fault}",
            valid="a version that `millrace run` registered from this home, or from a home whose "
            f"key is in {self.keys.trusted_file}",
            hint=f"if you trust its origin: millrace sign {version.model} {version.version}",
        )

    def owners_requirement(self, model: str) -> RequireSpec:
        """Return what the owner of this home requires of a model's versions."""
        found = next((each for each in self._pipelines() if each.name == model), None)
        return found.promotion.require if found is not None else RequireSpec()

    def _pipelines(self) -> "Iterator[Pipeline]":
        from millrace.models.config.pipeline_file import load_pipeline

        if self.given is not None:
            yield self.given
        for file in self.files():
            with suppress(InputError):  # a file that cannot be read relaxes no requirement
                yield load_pipeline(file)


def trust_of(installation: Installation, given: "Pipeline | None" = None) -> Trust:
    """Return the `Trust` of an installation.

    Args:
        installation: the installation.
        given: the pipeline that was given to a command. Its `promotion.require.signed` counts,
            because the command's user wrote it.
    """
    keys = SigningKeys(installation.home, installation.trusted_signers)
    return Trust(keys, lambda: installation.pipeline_files, given)
