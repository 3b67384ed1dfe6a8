"""`python -m millrace.serving.triton.load_check FILE [OUTPUT…]`: answer the rows on stdin.

The rows are an npz, and so are the answers on stdout, of the outputs that are named. Where none is,
it is run to see it end well: nobody reads the answers.
"""

import sys
from io import BytesIO

import numpy as np
import onnxruntime


def main() -> None:
    """Open the file and answer once."""
    file, *outputs = sys.argv[1:]
    with np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as rows:
        inputs = {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in rows.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    there = [node.name for node in session.get_outputs()]
    asked = [name for name in outputs if name in there]  # one that is lacking is seen as such
    answers = session.run(asked or None, inputs)
    if outputs:
        buffer = BytesIO()
        np.savez(buffer, **dict(zip(asked or there, answers, strict=True)))
        sys.stdout.buffer.write(buffer.getvalue())


if __name__ == "__main__":
    main()
