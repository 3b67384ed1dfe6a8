"""`python -m models.limited BYTES serving.alone FILE`: load a model and answer the rows on stdin.

The rows are an npz. What it is run for is to see it end well: nobody reads the answers.
"""

import sys
from io import BytesIO

import numpy as np
import onnxruntime


def main() -> None:
    """Open the file and answer once."""
    with np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as rows:
        inputs = {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in rows.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    session.run(None, inputs)


if __name__ == "__main__":
    main()
