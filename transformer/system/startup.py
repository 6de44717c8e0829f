"""Steps before JAX is imported: memory pages, closed streams, and signals."""

import os
import signal
import sys
import threading
from types import FrameType

# Schedulers and preempted machines send these: stop, save, and be started again. A terminal sends
# SIGHUP to its runs when it is closed.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)
)
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: run the same command again to continue


def use_huge_pages() -> None:
    """Restarts the process with huge memory pages, on Linux with glibc.

    XLA asks for its working memory at every step and returns it afterwards. On a CPU much of a
    small model's step goes into mapping that memory 4 KiB at a time. glibc reads this setting
    only when a process starts. Does nothing if GLIBC_TUNABLES is set.
    """
    signals = {*STOP_SIGNALS, signal.SIGINT}
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        # Signals that come while the new program starts wait for its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def fill_closed_streams() -> None:
    """Connects standard streams that the shell has closed to /dev/null.

    Otherwise a file that is opened later would get their number, and with it what C++ prints.
    sys.stdout and sys.stdin stay None, which tells that they were closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="replace")  # noqa: SIM115


def stop_when_told() -> None:
    """Lets a signal to stop end the process with code 75, until there is something to save.

    An ignored signal (SIGHUP, under nohup) stays ignored.
    """
    for number in stop_signals():
        signal.signal(number, lambda *_: os._exit(STOPPED))


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a run; not SIGHUP under nohup.

    SIGINT always counts. A shell makes background jobs ignore it, but one sent to our job is meant.
    """
    heard = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return [*heard, signal.SIGINT]


def be_quiet_when_interrupted() -> None:
    """Lets Ctrl-C end the process without a traceback, until `listen_to_interrupts`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def listen_to_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, as usual in Python, and is never lost.

    Python ignores exceptions in finalizers and in callbacks of the garbage collector, of which JAX
    has one. An interrupt that is lost there is raised again a little later.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, _interrupt)
    show = sys.unraisablehook

    def hook(unraisable) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
        elif not isinstance(unraisable.exc_value, SystemExit):  # preemption.py remembers its own
            show(unraisable)

    sys.unraisablehook = hook


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
