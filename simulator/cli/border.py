"""The border of the command line: signals, closed streams and faults end in a word, not a trace.

Exit codes: 128 + the number of the signal, 70 for a fault of collsim (``EX_SOFTWARE`` of BSD's
sysexits.h), 141 where the reader of a pipe has gone.
"""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["EscapedError", "debugging", "guarded", "report_text", "stop_code"]

DEBUG = "--debug"

PLAIN = {
    "×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "~", "→": ">", "←": "<", "±": "+",
    "µ": "u", "μ": "u", "°": "o", "≥": ">", "≤": "<", "≈": "~", "²": "2", "³": "3", "⁰": "0",
    "¹": "1", "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "#", "▎": "#", "▏": "|",
    "━": "-", "─": "-", "│": "|", "“": '"', "”": '"', "‘": "'", "’": "'", "α": "a", "β": "b",
}  # fmt: skip
"""One character for one, so that columns stay columns."""

_OF_ASCII = "collsim-ascii"

_stopped_by: list[int] = []
_debug = False


class EscapedError(Exception):
    """Carries what the library of the command line would catch and give a code of its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _StoppedError(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends a run as Ctrl-C does."""


def debugging() -> bool:
    """Return whether tracebacks of faults are asked for."""
    return _debug


def report_text() -> str:
    """Return what to do about a fault of collsim."""
    more = "" if _debug else f"; {DEBUG} prints the traceback"
    return f"  please report the command and this line (CONTRIBUTING.md, Faults){more}"


def stop_code() -> int:
    """Return the exit code of a run that a signal has stopped: 130 for Ctrl-C."""
    return 128 + (_stopped_by[0] if _stopped_by else signal.SIGINT)


def guarded(run: Callable[[], None]) -> None:
    """Run the command line in its process and turn whatever it raises into words and a code.

    Parameters
    ----------
    run
        Reads ``sys.argv``; `DEBUG` is taken out of it before.
    """
    from simulator.base.errors import expected

    global _debug
    debug = _debug = DEBUG in sys.argv[1:]
    sys.argv[1:] = [word for word in sys.argv[1:] if word != DEBUG]
    _open_streams()
    caught = _catch_signals()
    try:
        try:
            run()
            sys.stdout.flush()
        except EscapedError as escaped:
            raise escaped.error from None
    except KeyboardInterrupt:
        _tell("interrupted")
        sys.exit(stop_code())
    except BrokenPipeError:
        _leave_output()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            _fail(error, debug)
        _leave_output()
        _tell(f"standard output: cannot write: {error.strerror}")
        sys.exit(2)
    except Exception as error:
        told = expected(error)
        if told.exit_code == 70:
            _fail(error, debug)
        _tell(str(told))
        sys.exit(told.exit_code)
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _fail(error: Exception, debug: bool) -> None:
    """Tell of a fault of collsim itself, and end."""
    from simulator.base.errors import InternalError, expected

    told = error if isinstance(error, InternalError) else expected(error)
    if debug:
        _tell(getattr(told, "detail", ""))
    _tell(f"collsim failed by a fault of its own: {told}")
    _tell(report_text())
    sys.exit(70)


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text.rstrip("\n") + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody reads there


def _leave_output() -> None:
    """Let nothing be written to a standard output that is gone, at exit neither."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass  # a stream of the caller's, without a file


def _open_streams() -> None:
    """Open what the shell has closed, and let no character stop a stream.

    A closed descriptor would be given to the next file that is opened, and what is printed would
    land in it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            mode = "r" if name == "stdin" else "w"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    # Pictures go to files: a window system is not asked for, and a wrong name must not matter.
    os.environ.pop("MPLBACKEND", None)
    codecs.register(_ascii)
    codecs.register_error("collsim-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            reconfigure(encoding=_OF_ASCII if is_ascii else None, errors="collsim-plain")


def _ascii(name: str) -> codecs.CodecInfo | None:
    """Return ASCII by another name: a stream of the usual one, click takes for UTF-8 instead."""
    if name.replace("_", "-") != _OF_ASCII:
        return None
    usual = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=_OF_ASCII,
        encode=usual.encode,
        decode=usual.decode,
        incrementalencoder=usual.incrementalencoder,
        incrementaldecoder=usual.incrementaldecoder,
        streamwriter=usual.streamwriter,
        streamreader=usual.streamreader,
    )


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that a terminal's encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end]
    return "".join(PLAIN.get(letter, "?") for letter in found), error.end


def _catch_signals() -> list[int]:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does, and return those that are caught.

    What is ignored (``nohup``) stays so.
    """
    _stopped_by.clear()
    if threading.current_thread() is not threading.main_thread():
        return []

    def stop(number: int, _frame: object) -> None:
        _stopped_by.append(number)
        raise _StoppedError

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    caught = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, stop)
    return caught
