"""Signatures of registered versions, and which versions a home trusts.

Whoever reaches the registry may write to it. So a version is signed when it is registered, by an
Ed25519 key of the home, and what is not signed by a key that the home trusts is neither served,
scored with nor trained from. The statement that is signed names the version, so a copy of it under
another number or another name is not signed; the digests in it cover all files that are read. It
names their place too, so nothing is fetched from one that somebody else chose.

    HOME/signing.key         private, mode 0600, made once
    HOME/signing.pub         the public half, to give to other homes
    HOME/trusted_signers     public keys of other homes, one a line, with a comment after it
    HOME/released_unsigned   what was live before this home had a key, see `SigningKeys.made`

`promotion.require.signed: false` counts in a pipeline file of whoever runs the command: a file of
MILLRACE_PIPELINES, or the file that the command was given. The file beside a version in the
registry does not count: whoever made the version wrote it.
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
"""Tags that a release, a batch or a training goes by; others, like a status, change later."""
EVIDENCE_TAG = "millrace.evidence"
UNSIGNED = "it is not signed"


def statement(version: "ModelVersion") -> bytes:
    """Return what is signed of a version: canonical JSON."""
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
    """The keys of one home.

    Attributes:
        home: its folder.
        others: public keys that it trusts beside its own and those of `trusted_signers`.
    """

    home: Path
    others: tuple[str, ...] = ()

    @property
    def private_file(self) -> Path:
        """The private key."""
        return self.home / "signing.key"

    @property
    def trusted_file(self) -> Path:
        """The public keys of other homes."""
        return self.home / "trusted_signers"

    @property
    def earlier_file(self) -> Path:
        """The versions that were live before there was a key."""
        return self.home / "released_unsigned"

    def made(self, live_before: Callable[[], Iterable[tuple[str, int, str]]]) -> None:
        """Make the key where there is none yet.

        What was live in this home before it had a key stays live, and may come back: it is written
        down once, and nothing that is live later joins it.

        Args:
            live_before: returns model, version and digest of what was ever live here.
        """
        if not self.private_file.exists():
            lines = [f"{model} {version} {digest}\n" for model, version, digest in live_before()]
            if lines:
                replace_private(self.earlier_file, "".join(sorted(lines)))
            _ = self.public

    @property
    def public(self) -> str:
        """The home's own public key, base64; the key is made if there is none.

        Raises:
            WorkError: the key cannot be read or written.
        """
        public = _encoded(self._private().public_key().public_bytes_raw())
        file = self.home / "signing.pub"
        if not file.exists():
            replace_private(file, f"{public} of {self.home}\n")
        return public

    def trusted(self) -> frozenset[str]:
        """Return the public keys that this home trusts."""
        own = (self.public,) if self.private_file.exists() else ()
        return frozenset({*own, *self.others, *_first_words(self.trusted_file)})

    def sign(self, version: "ModelVersion") -> str:
        """Return the signature of a version, the value of `SIGNATURE_TAG`."""
        signature = self._private().sign(statement(version))
        return f"{FORMAT}.{self.public}.{_encoded(signature)}"

    def was_live_before(self, version: "ModelVersion") -> bool:
        """Return whether a version was live here before the home had a key."""
        line = f"{version.model} {version.version} {version.digest}"
        return bool(version.digest) and line in _lines(self.earlier_file)

    def _private(self) -> "Ed25519PrivateKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            text = read_or_create_secret(self.private_file, _new_private_key)
            return Ed25519PrivateKey.from_private_bytes(_decoded(text.strip()))
        except (OSError, ValueError) as error:
            raise WorkError(
                "the signing key of this home cannot be read or written",
                seen=f"{self.private_file}: {error}",
                valid="a file of 44 characters that only this user may read",
                hint="bring it back from a backup; with a new key every version must be signed "
                "again: millrace sign MODEL VERSION",
            ) from error


def fault_of_signature(version: "ModelVersion", trusted: Collection[str]) -> str | None:
    """Return why a version is not signed by one of these keys, in words, or None.

    Args:
        version: its tags as the registry has them.
        trusted: public keys, base64.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = version.tags.get(SIGNATURE_TAG, "")
    if not signature:
        return UNSIGNED if version.digest else "it has no digest and is not signed"
    words = signature.split(".")
    if len(words) != 3 or words[0] != FORMAT:
        return "its signature is none that can be read"
    _, public, value = words
    if public not in trusted:
        return f"it is signed by a key that this home does not trust, {public[:44]}"
    if not version.tags.get(EVIDENCE_TAG):
        return "its evidence has no digest"
    try:
        key = Ed25519PublicKey.from_public_bytes(_decoded(public))
        key.verify(_decoded(value), statement(version))
    except (InvalidSignature, ValueError):
        return "its signature is of something else: another version, source, files or tags"
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
            f"{file} cannot be read", seen=error, valid="a text file, one entry a line"
        ) from error


def _first_words(file: Path) -> frozenset[str]:
    lines = (line.split() for line in _lines(file))
    return frozenset(words[0] for words in lines if words and not words[0].startswith("#"))


@dataclass(frozen=True)
class Trust:
    """What decides whether a version is worked with.

    Attributes:
        keys: the home's keys.
        files: returns the pipeline files of the home's owner.
        given: the pipeline that a command was given.
    """

    keys: SigningKeys
    files: Callable[[], tuple[Path, ...]] = tuple
    given: "Pipeline | None" = None

    def fault(self, version: "ModelVersion") -> str | None:
        """Return why a version is not trusted, or None if it is."""
        fault = fault_of_signature(version, self.keys.trusted())
        if fault is not None and self.keys.was_live_before(version):
            return None
        return fault

    def require(self, version: "ModelVersion") -> str:
        """Return the warning about a version that may be used: empty if it is signed.

        Raises:
            InputError: Millrace does not use models of this name, or the version is not signed and
                the owner of this home requires that.
        """
        require_model_name(version.model)
        fault = self.fault(version)
        if fault is None:
            return ""
        if not self.owners_requirement(version.model).signed:
            return f"{fault}, and promotion.require.signed is false"
        raise InputError(
            f"{version.model} version {version.version} is not trusted: {fault}",
            valid="a version that `millrace run` registered from this home, or from one whose key "
            f"is in {self.keys.trusted_file}",
            hint=f"if you know where it is from: millrace sign {version.model} {version.version}",
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
            with suppress(InputError):  # a file that cannot be read allows nothing
                yield load_pipeline(file)


def trust_of(installation: Installation, given: "Pipeline | None" = None) -> Trust:
    """Return what an installation trusts.

    Args:
        installation: where everything is.
        given: the pipeline that a command was given, which its owner wrote.
    """
    keys = SigningKeys(installation.home, installation.trusted_signers)
    return Trust(keys, lambda: installation.pipeline_files, given)
