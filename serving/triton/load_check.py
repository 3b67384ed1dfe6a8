"""`python -m millrace.serving.triton.load_check FILE [OUTPUT…]`: run an ONNX file on rows.

Stdin is an npz file with the rows. Stdout is an npz file with the outputs named in the arguments;
without such names only the exit code matters.
"""

import sys
from io import BytesIO

import numpy as np
import onnxruntime


def main() -> None:
    """Open the ONNX file and run it once."""
    file, *outputs = sys.argv[1:]
    with np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as rows:
        inputs = {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in rows.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    existing = [node.name for node in session.get_outputs()]
    requested = [name for name in outputs if name in existing]  # the caller checks the rest
    answers = session.run(requested or None, inputs)
    if outputs:
        buffer = BytesIO()
        np.savez(buffer, **dict(zip(requested or existing, answers, strict=True)))
        sys.stdout.buffer.write(buffer.getvalue())


if __name__ == "__main__":
    main()
