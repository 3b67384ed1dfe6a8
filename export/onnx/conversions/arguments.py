"""The command line that every conversion has."""

import logging
import warnings
from argparse import ArgumentParser
from pathlib import Path


def parser(purpose: str | None, *, calibrated: bool = False) -> ArgumentParser:
    """Return a parser that takes the file to convert and the file to write.

    Args:
        purpose: what the program does.
        calibrated: whether it needs rows of the train split too.
    """
    # What is no fault of the model is not for the reader of a refusal.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    made = ArgumentParser(description=purpose)
    made.add_argument("source", type=Path, help="the model to convert")
    made.add_argument("target", type=Path, help="where to write")
    if calibrated:
        made.add_argument("--calibration", type=Path, required=True, help="batches, an npz")
    return made
