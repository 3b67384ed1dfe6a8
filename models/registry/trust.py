"""Which registered versions a home works with: those that are signed, unless its owner says else.

`promotion.require.signed: false` counts in a pipeline file of whoever runs the command: the files
of MILLRACE_PIPELINES, or the file that the command was given. The file that lies beside a version
in the registry does not count: whoever made the version wrote it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import RequireSpec
from millrace.models.registry.model_names import require_model_name
from millrace.models.registry.signing import SigningKeys, fault_of_signature

if TYPE_CHECKING:
    from millrace.models.config.pipeline import Pipeline
    from millrace.models.registry.version_files import ModelVersion


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
        """Return the warning about a version that is used all the same; empty if it is trusted.

        Raises:
            InputError: its name is none of a model that we work with, or it is not signed and the
                owner of this home requires that.
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
