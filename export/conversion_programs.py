"""The programs that make one variant out of another, and the commands that make it again.

Each runs in a process of its own, with limits: one that hangs, crashes or takes too much memory is
a candidate with its reason, and the others go on.
"""

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from millrace.export.candidate import Candidate
from millrace.models.common.errors import MillraceError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess

COMMANDS = "commands.sh"
CALIBRATION = "calibration.npz"
DRAFT = ".draft"
"""Ends the name of a variant that is not whole yet."""


@dataclass(frozen=True)
class ConversionPrograms:
    """The programs of a package, run in one folder.

    Attributes:
        package: of the programs.
        folder: where the variants are.
        limits: what one program may take.
        source: the file or folder that the first of them reads.
        needs: the Python packages that make the variants again, in words.
    """

    package: ModuleType
    folder: Path
    limits: Limits
    source: str
    needs: str

    @property
    def programs(self) -> Path:
        """The folder of the programs' source."""
        return Path(str(self.package.__file__)).parent

    def run(self, program: str, words: Sequence[str | Path]) -> None:
        """Run a program with limits.

        Raises:
            WorkError: it failed, or took more than the limits.
        """
        run_in_subprocess(
            program, list(words), self.limits, what="its conversion", retry_killed=False
        )

    def keep(self, name: str, program: str, words: Sequence[str]) -> None:
        """Keep the programs and the command that makes a variant again, whether it works or not.

        Args:
            name: the variant.
            program: the module that makes it.
            words: its arguments, with paths relative to the folder.
        """
        copied = self.folder / self.programs.name
        if not copied.exists():
            shutil.copytree(self.programs, copied, ignore=shutil.ignore_patterns("__pycache__"))
        outer = self.package.__name__.rpartition(".")[0]
        command = ["python", "-m", program.removeprefix(f"{outer}."), *words]
        with (self.folder / COMMANDS).open("a") as file:
            if not file.tell():
                file.write(
                    f"# run in this folder, the run's export/, with {self.needs};\n"
                    f"# {self.source} is what training exported\n"
                )
            file.write(f"# {name}\n{shlex.join(command)}\n".replace(DRAFT, ""))

    def reproduction(self) -> tuple[Path, ...]:
        """Return the programs, the commands and what they read; nothing if none has run."""
        if not (self.folder / COMMANDS).exists():
            return ()
        names = (self.programs.name, COMMANDS, self.source, CALIBRATION)
        return tuple(path for name in names if (path := self.folder / name).exists())


def measure_candidate(
    name: str, measure: Callable[[], Candidate[Any, Any]], *, is_served: bool = True
) -> Candidate[Any, Any]:
    """Return a candidate; one that cannot be made or measured has the reason.

    Raises:
        MillraceError: a transient one: the source of the rows failed, not the variant.
    """
    try:
        return measure()
    except MillraceError as error:
        if error.transient:
            raise
        return Candidate(name, reason=error.what, is_served=is_served)
