"""Silences a library's logs and progress bars while a block runs; disables OpenVINO's telemetry."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """While the block runs, let loggers and their children log only errors."""
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
def quiet_transformers() -> Iterator[None]:
    """Make transformers log errors only, without progress bars, while the block runs."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def disable_openvino_telemetry() -> None:
    """Hide the telemetry package from OpenVINO's and nncf's tools, before they are imported.

    These tools send usage data on import and on every conversion, unless a file says that the user
    has opted out. Without the package they send nothing and work as before.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
