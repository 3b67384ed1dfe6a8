"""What holds for all tests."""

import signal

# A shell that starts tests in the background has Ctrl-C ignored, and so would every command that
# they start: what they send to it would be lost, as if the command had lost it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
