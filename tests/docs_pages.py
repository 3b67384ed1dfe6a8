"""The pages of the documentation, their fenced examples and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FENCE = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ \t]*$", flags=re.M | re.S)
NEEDS_MORE = frozenset({"mine.yaml", "smaller.yaml"})
"""Pipeline files whose check needs a reader's data, or a registry."""
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*", flags=re.S)


@dataclass(frozen=True)
class Command:
    """One command line of a page.

    Attributes:
        page: where it is, such as `docs/batch.md`.
        words: the program and its arguments.
        variables: what is set before it.
    """

    page: str
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""

    def __str__(self) -> str:
        return " ".join((*(f"{name}={value}" for name, value in self.variables), *self.words))


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: where it is.
        line: of the page, at which its fence opens.
        language: the first word behind the fence.
        text: what is between the fences.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the block is, as its first line says: `# mine.yaml`."""
        named = re.match(r"# (\S+\.\w+)\n", self.text)
        return named.group(1) if named else None

    @property
    def commands(self) -> tuple[Command, ...]:
        """The command lines of a block in a shell's language."""
        text = self.text
        if self.language == "console":
            text = "\n".join(re.findall(r"^\$ (.*)$", text, flags=re.M))
        found: list[Command] = []
        for words in _lines(text):
            found += _piped(self.page, words)
        return tuple(found)

    @property
    def output(self) -> tuple[str, ...]:
        """What a console block shows below its command."""
        lines = self.text.splitlines()
        return tuple(line for line in lines if line.strip() and not line.startswith("$ "))


def pages() -> tuple[Path, ...]:
    """Return every page, the README first."""
    others = [
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return (README, *others)


def guides() -> tuple[Path, ...]:
    """Return the pages that are written for users: the README and the guides in `docs/`."""
    logs = ("decisions.md", "where.md")
    return (
        README,
        *(each for each in sorted((ROOT / "docs").glob("*.md")) if each.name not in logs),
    )


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> tuple[Block, ...]:
    text = page.read_text()
    return tuple(
        Block(name_of(page), text.count("\n", 0, m.start()) + 1, m["language"], m["text"])
        for m in FENCE.finditer(text)
    )


def all_blocks() -> tuple[Block, ...]:
    return tuple(block for page in pages() for block in blocks_of(page))


def is_run_in_process(command: Command) -> bool:
    """Whether the unit test runs it: it needs nothing but the files that the pages show."""
    if command.words[:2] not in (("millrace", "check"), ("millrace", "schema")):
        return False
    return not NEEDS_MORE & set(command.words)


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def code_words(page: Path) -> tuple[str, ...]:
    """Return what is in backticks in a page's prose."""
    return tuple(re.findall(r"`([^`\n]+)`", prose_of(page)))


def _lines(text: str) -> list[list[str]]:
    """Return the words of each command; one goes on where a line ends in `\\` or in a quote."""
    found, open_line = [], ""
    for line in text.replace("\\\n", " ").splitlines():
        open_line = f"{open_line}\n{line}" if open_line else line
        try:
            words = shlex.split(open_line, comments=True)
        except ValueError:  # a quote is still open
            continue
        open_line = ""
        found.append(words)
    assert not open_line, f"a quote is not closed: {open_line}"
    return [words for words in found if words]


def _piped(page: str, words: list[str]) -> list[Command]:
    """Return the commands of a line, which may be a pipe."""
    if "|" in words:
        at = words.index("|")
        return [*_piped(page, words[:at]), *_piped(page, words[at + 1 :])]
    first = next((n for n, word in enumerate(words) if not ASSIGNMENT.fullmatch(word)), len(words))
    pairs = (word.partition("=") for word in words[:first])
    return [Command(page, tuple(words[first:]), tuple((name, value) for name, _, value in pairs))]
