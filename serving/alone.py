"""`python -m serving.alone FILE BYTES`: load a model and answer the rows on stdin, an npz.

The process gives itself the memory that it may take: done between a fork and an exec, beside the
threads of a gRPC client, that ended the child.

What it is run for is to see it end well: nobody reads the answers.
"""

import resource
import sys
from io import BytesIO

import numpy as np
import onnxruntime


def main() -> None:
    """Open the file and answer once; what goes wrong is the last line on stderr."""
    size = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with np.load(BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as rows:
        inputs = {k: v.astype(object) if v.dtype.kind == "U" else v for k, v in rows.items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            sys.argv[1], options, providers=["CPUExecutionProvider"]
        )
        session.run(None, inputs)
    except Exception as error:
        sys.exit(str(error).splitlines()[0] if str(error) else type(error).__name__)


if __name__ == "__main__":
    main()
