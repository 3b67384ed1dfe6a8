import sys
from pathlib import Path

Path(sys.argv[2]).write_bytes(b"no model")
