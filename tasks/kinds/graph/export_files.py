"""The files that go beside an exported model."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millrace.export.certificate import Certificate
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.inference.features import TEXT, Encoding

if TYPE_CHECKING:
    from millrace.export.measure import Evidence


def write_files(
    folder: Path, pipeline: Pipeline, encoding: Encoding, certificate: Certificate
) -> dict[str, Path]:
    """Write what goes beside the model; return the files by name."""
    texts = {
        "encoding.json": encoding.to_json(),
        "certificate.json": certificate.to_json(),
        "pipeline.yaml": resolved_yaml(pipeline),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in texts}


def write_golden(folder: Path, encoding: Encoding, evidence: "Evidence", first: pa.Table) -> Path:
    """Write the golden batch as the graph reads it, of a text also as a client sends it."""
    arrays = {evidence.read.name: evidence.golden, "answers": evidence.golden_answers}
    if encoding.tokenizer is not None:
        sent = encoding.request(first)[TEXT].ravel().tolist()
        # as JSON: NumPy's own text loses a NUL at the end
        arrays[TEXT] = np.array(json.dumps(sent))
    path = folder / "golden.npz"
    np.savez(path, **arrays)
    return path
