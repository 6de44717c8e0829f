"""What must happen before JAX is imported."""

import os
import signal
import sys
import threading
from types import FrameType


def use_huge_pages() -> None:
    """Starts the process anew with huge memory pages, on Linux with glibc.

    XLA asks for its working memory at every step and gives it back after, and on a CPU much
    of a small model's step goes into mapping that memory 4 KiB at a time. glibc reads this
    setting only when a process starts. Nothing is done where GLIBC_TUNABLES is set.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def be_quiet_when_interrupted() -> None:
    """Ctrl-C ends the process without a traceback, until `listen_to_interrupts`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def listen_to_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual in Python."""
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_code.co_name == "_xla_gc_callback":
        # JAX's callback of the garbage collector, where exceptions are ignored: later.
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    else:
        raise KeyboardInterrupt
