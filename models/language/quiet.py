"""Keeps transformers' progress bars and reports from the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers tell errors only for the length of the block, and show no bar."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]
