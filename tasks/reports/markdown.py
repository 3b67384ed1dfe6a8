"""Markdown for MLflow and Prefect, and the report on a run as one self-contained HTML page."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { background: #f4f4f4; }
pre { background: #f8f8f8; margin: 0; padding: .5rem; white-space: pre-wrap; }
img { max-width: 100%; }
"""


def html_page(title: str, markdown: str, pictures: Mapping[str, bytes]) -> str:
    """Return a self-contained HTML page.

    Args:
        title: the title of the page.
        markdown: the text of the page; HTML in it is escaped.
        pictures: PNG files after the text, in order, by path; the file name is the caption.
    """
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown)
    shown = "".join(
        f"<h2>{(caption := escape(_caption(path)))}</h2>"
        f'<img alt="{caption}" src="{_inline(picture)}">'
        for path, picture in pictures.items()
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{body}{shown}</body></html>"


def _inline(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _caption(path: str) -> str:
    """Return the caption of a picture: `Learning curve` of `plots/learning_curve.png`."""
    return Path(path).stem.replace("_", " ").capitalize()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines
    )


def key_of(*parts: str) -> str:
    """Return a Prefect artifact key, which may have lower-case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts)).strip("-")
