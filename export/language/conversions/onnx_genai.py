"""Exports a decoder to ONNX for onnxruntime-genai, with that package's own builder.

Reads a checkpoint in the format of transformers, and writes a folder. Needs onnxruntime-genai,
torch and transformers.
"""

import logging
import runpy
import sys
import tempfile
import warnings
from argparse import ArgumentParser
from pathlib import Path


def main() -> None:
    """Convert one folder."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("source", type=Path, help="folder of the checkpoint")
    made.add_argument("target", type=Path, help="folder to create")
    made.add_argument("--precision", choices=("int8", "int4"), default="int4")
    given = made.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as cache:
        words = ["-i", given.source, "-o", given.target, "-p", given.precision, "-c", cache]
        sys.argv = ["builder", *map(str, words), "-e", "cpu"]
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


if __name__ == "__main__":
    main()
