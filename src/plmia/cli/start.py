"""Start and end of the command, where Ctrl-C has nothing to undo and ends it without a traceback."""

# Python itself has loaded both: no other file is read before Ctrl-C is handled. `signal` would take 5 ms.
import _signal  # type: ignore[import-not-found]
import os

# What shells expect of a command that Ctrl-C ended: 128 and the signal's number.
INTERRUPTED = 130


def run() -> None:
    """Run the command; its imports take a good part of a second."""
    # A shell may have started it to ignore Ctrl-C.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)
    from plmia.cli.streams import standard_streams

    with standard_streams():
        from plmia.cli.main import main

        main(prog_name="plmia")


def end(*_: object) -> None:
    """End this process at once."""
    try:
        os.write(2, b"plmia: stopped\n")
    finally:  # nobody may read it any more
        os._exit(INTERRUPTED)
