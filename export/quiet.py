"""Keeps the chatter of a library from the user's terminal, for the time of one call."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Let loggers, and those below them, log errors only while the block runs."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def quiet_root() -> Iterator[None]:
    """Drop what is logged through the root logger itself, warnings excepted.

    By a filter, which leaves the loggers below it alone; a level would silence the whole process.
    """
    root = logging.getLogger()
    root.addFilter(_is_warning)
    try:
        yield
    finally:
        root.removeFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
