"""`python -m models.limited BYTES PROGRAM [ARGUMENTS...]`: a program that limits itself first.

PROGRAM is a Python file, or the name of a module. The limits are set by the process itself: done
between a fork and an exec, beside the threads of a gRPC client, that ended the child. What the
program dies of is the last line on stderr; a stack trace is what `python PROGRAM` is for.
"""

import resource
import runpy
import sys


def main() -> None:
    """Run the program under a limit on its address space, in bytes, and without a core dump."""
    size, program, *arguments = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(size), int(size)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__")
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


if __name__ == "__main__":
    main()
