"""The command line: one file a command, and nothing heavy imported before a command runs.

Exit codes: 0 done · 1 a check failed or Threefold has a bug (then with a traceback) · 2 input that
cannot be used, with one message on stderr · 3 another of several processes says what is wrong ·
130 interrupted.
"""

from __future__ import annotations

import atexit
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

__all__ = ["main"]

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always raises SystemExit.  Without arguments it is the program."""
    ending = Ending()
    if arguments is None:
        atexit.register(ending)  # before all others, so that it runs after them
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
    from threefold.cli.app import main as run

    try:
        run(arguments)
    except SystemExit as ended:
        ending.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise


class Ending:
    """Ends the process when all other functions that run at exit are done.

    The interpreter would first take torch apart, object by object: half a second for each command,
    many times that on a busy machine, in which a second signal would change the exit code.
    """

    code = 1  # unless the program says otherwise: an exception that was not expected

    def __call__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()
        os._exit(self.code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Before torch is imported nothing has begun, and an exception in an import may get lost."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        os.write(2, f"Error: {stopped_text(sys.argv[1:])}\n".encode(errors="backslashreplace"))
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def stopped_text(words: Sequence[str], what: str = "interrupted; to run it again") -> str:
    """What a command says that was interrupted; words: its arguments."""
    return f"{what}: {shlex.join(['threefold', *words])}"
