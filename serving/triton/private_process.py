"""Start a program whose arguments and files no other user of this machine can read.

    python private_process.py FOLDER PROGRAM ARGUMENT...

The program gets the value of the environment variable NAME instead of an argument `@NAME`. Every
user can read the arguments of every process in `/proc/PID/cmdline` as soon as the process exists;
only the process's own user can read its environment. The kernel shows one range of the process's
memory as its arguments, while the program reads its arguments through pointers. So a helper
process, the tracer, stops the program after `execve`, before its first instruction. The tracer sets
the pointer of each `@NAME` to the value in the environment; the public range still shows `@NAME`.
Then the tracer ends.

If the kernel does not allow tracing, the arguments are public, with a warning on stderr. A program
whose memory layout is not as expected is killed. This file needs only the standard library, and
starts within milliseconds.
"""

import ctypes
import os
import resource
import signal
import struct
import sys

STACK_BYTES = 512 * 2**20
"""Stack limit of the program.

Triton 2.51 copies the body of an HTTP request to the stack of a thread, at twice the body's size.
With the default limit of 8 MiB, a body of 5 MB crashes the server. The unused part of a stack uses
no memory.
"""

PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE = 7, 17, 0x4206
TRACE_EXEC, EXIT_KILL = 0x10, 0x100000
EVENT_EXEC, EVENT_STOP = 4, 128
WAIT_ALL = 0x40000000
PR_SET_PTRACER = 0x59616D61
PR_SET_PDEATHSIG = 1
ENDS_WITH_PARENT = "MILLRACE_ENDS_WITH_PARENT"
"""Environment variable: if it is set, the kernel kills the program when its parent ends."""
NO_TRACING = "warning: the kernel forbids tracing, so other users can read Triton's token in `ps`\n"


NO_SECCOMP = "warning: the kernel forbids seccomp, so other users can read requests in /dev/shm\n"
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
X86_64, FCHMOD = 0xC000003E, 91
_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _DO_NOTHING = 0x7FFF0000, 0x00050000
FCHMOD_FILTER = (
    (_LOAD, 0, 0, 4),  # the architecture
    (_EQUAL, 0, 5, X86_64),
    (_LOAD, 0, 0, 0),  # the system call number
    (_EQUAL, 0, 3, FCHMOD),
    (_LOAD, 0, 0, 24),  # the second argument of the call, the mode
    (_ANY, 0, 1, 0o077),
    (_RETURN, 0, 0, _DO_NOTHING),
    (_RETURN, 0, 0, _ALLOW),
)
"""A seccomp(2) filter; each row: code, instructions to skip if true, the same if false, operand."""


class SockFilter(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class SockProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(SockFilter)))


class LayoutError(Exception):
    """The memory of the new process does not have the expected layout."""


def main(folder: str, argv: list[str]) -> None:
    """Replace this process by the program; never returns."""
    os.chdir(folder)
    if os.environ.get(ENDS_WITH_PARENT):
        _libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _keep_files_private()
    _raise_stack_limit()
    if not any(_is_private(argument) for argument in argv):
        os.execv(argv[0], argv)  # noqa: S606
    if not _start_tracer(argv):
        sys.stderr.write(NO_TRACING)
        sys.stderr.flush()
        argv = [os.environ[each[1:]] if _is_private(each) else each for each in argv]
    os.execv(argv[0], argv)  # noqa: S606


def _is_private(argument: str) -> bool:
    return argument.startswith("@")


def _keep_files_private() -> None:
    """Keep the program's files private, including the shared memory of its backends in `/dev/shm`.

    That memory contains clients' requests. Boost makes it readable to all users by `fchmod`,
    regardless of the umask. So a seccomp filter turns every `fchmod` that would open a file to
    other users into a no-op.
    """
    os.umask(0o077)
    filters = (SockFilter * len(FCHMOD_FILTER))(*(SockFilter(*each) for each in FCHMOD_FILTER))
    program = SockProgram(len(FCHMOD_FILTER), filters)
    refused = _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc().prctl(
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    )
    if refused:
        sys.stderr.write(NO_SECCOMP)
        sys.stderr.flush()


def _raise_stack_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if most == resource.RLIM_INFINITY else min(STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, most))


def _start_tracer(argv: list[str]) -> bool:
    """Start the tracer of this process, and return whether the kernel allows the tracing."""
    from_tracer_read, from_tracer_write = os.pipe()
    to_tracer_read, to_tracer_write = os.pipe()
    middle = os.fork()
    if middle == 0:  # so the tracer is no child of the program, which would not reap it
        tracer = os.fork()
        if tracer == 0:
            os.close(to_tracer_write)
            os._exit(_run_tracer(os.read(to_tracer_read, 16), from_tracer_write, argv))
        os.write(from_tracer_write, b"%15d" % tracer)
        os._exit(0)
    os.close(from_tracer_write)
    os.close(to_tracer_read)
    os.waitpid(middle, 0)
    number = os.read(from_tracer_read, 15)
    _libc().prctl(PR_SET_PTRACER, int(number), 0, 0, 0)  # only needed with Yama
    os.write(to_tracer_write, b"%15d" % os.getpid())
    os.close(to_tracer_write)
    allowed = os.read(from_tracer_read, 1) == b"+"
    os.close(from_tracer_read)
    return allowed


def _run_tracer(number: bytes, report: int, argv: list[str]) -> int:
    """Wait until the process runs the program, replace the pointers to arguments, and detach."""
    pid = int(number)
    if _ptrace(PTRACE_SEIZE, pid, 0, TRACE_EXEC | EXIT_KILL) != 0:
        os.write(report, b"-")
        return 0
    os.write(report, b"+")
    os.close(report)
    while True:
        _, status = os.waitpid(pid, WAIT_ALL)
        if not os.WIFSTOPPED(status):
            return 0
        event = status >> 16
        if event == EVENT_EXEC:
            try:
                _replace_pointers(pid, argv)
            except (LayoutError, OSError) as error:
                sys.stderr.write(f"error: Triton's arguments cannot be kept private: {error}\n")
                sys.stderr.flush()
                os.kill(pid, signal.SIGKILL)
                return 1
            _ptrace(PTRACE_DETACH, pid, 0, 0)
            return 0
        _ptrace(PTRACE_CONT, pid, 0, 0 if event == EVENT_STOP else os.WSTOPSIG(status))


def _replace_pointers(pid: int, argv: list[str]) -> None:
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
        fields = file.read().rpartition(b")")[2].split()  # fields from number 3 on, see proc(5)
    stack, environment, end = (int(fields[number - 3]) for number in (28, 50, 51))
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        (count,) = struct.unpack("=Q", os.pread(memory, 8, stack))
        if count != len(argv):
            raise LayoutError(f"the process has {count} arguments, but {len(argv)} were given")
        pointers = struct.unpack(f"={count}Q", os.pread(memory, 8 * count, stack + 8))
        variables = os.pread(memory, end - environment, environment)
        for number, argument in enumerate(argv):
            if _is_private(argument):
                _require_argument(memory, pointers[number], argument)
                value = environment + _find_value(variables, argument[1:])
                os.pwrite(memory, struct.pack("=Q", value), stack + 8 + 8 * number)
    finally:
        os.close(memory)


def _require_argument(memory: int, pointer: int, argument: str) -> None:
    wanted = argument.encode() + b"\0"
    if os.pread(memory, len(wanted), pointer) != wanted:
        raise LayoutError(f"the argument {argument} is not at its expected address")


def _find_value(variables: bytes, name: str) -> int:
    """Return the offset at which the value of a variable begins in the environment."""
    at = (b"\0" + variables).find(b"\0" + name.encode() + b"=")
    if at < 0:
        raise LayoutError(f"the environment has no variable {name}")
    return at + len(name) + 1


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _ptrace(request: int, pid: int, address: int, data: int) -> int:
    function = _libc().ptrace
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return int(function(request, pid, address, data))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
