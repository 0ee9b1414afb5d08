"""The command line: ``edgewise VERB``. Subcommands are imported when they are called."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

from edgewise.errors import EdgewiseError, ExitCode

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run the command line and exit with the code of HOUSE STYLE: see ``edgewise --help``."""
    arguments = sys.argv[1:] if argv is None else argv
    _prepare_streams()
    # A program that gives arguments of its own decides by itself about the memory that is its own.
    sys.exit(_run(arguments, prepare=_refuse_core_dumps if argv is None else _as_it_is))


def _prepare_streams() -> None:
    """Make the standard streams usable: text they cannot encode is escaped, not an error."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _as_it_is(command: str) -> None:
    """Change nothing about this process."""


def _refuse_core_dumps(command: str) -> None:
    """Keep prompts out of crash dumps, before any is read; say so where that cannot be done.

    What `egress` starts is to be seen under the limits that it has elsewhere: under lowered ones a
    program would pass that leaves dumps.
    """
    from edgewise.device.process import refuse_core_dumps

    if command != "egress" and not refuse_core_dumps():
        print("note: a crash of this process may leave its memory in a dump", file=sys.stderr)


def _run(arguments: list[str], *, prepare: Callable[[str], None] = _as_it_is) -> int:
    import click

    from edgewise.cli.root import root

    as_json = "--json" in arguments
    if sys.stdout is None:
        return _report(_no_output("it is closed"), as_json=False)
    try:
        # Not root.main(): that turns a broken pipe into exit code 1, a bug by our list.
        with root.make_context("edgewise", list(arguments)) as context:
            prepare(arguments[0])
            code = root.invoke(context)
        sys.stdout.flush()
    except EdgewiseError as error:
        return _report(error, as_json=as_json)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message(), file=sys.stderr)
        return int(ExitCode.INPUT)
    except click.ClickException as error:
        return _report(_usage(error), as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPT)
    except BrokenPipeError:
        _drop_stdout()
        return int(ExitCode.OK)
    except OSError as error:
        if not _stdout_failed(error):
            raise
        _drop_stdout()
        return _report(_no_output(error.strerror or "it failed"), as_json=False)
    return int(code or 0)


def _no_output(why: str) -> EdgewiseError:
    from edgewise.errors import ResourceError

    return ResourceError(
        "output-failed",
        f"standard output cannot be written: {why}",
        hint="the result had nowhere to go; nothing else is wrong",
    )


def _stdout_failed(error: OSError) -> bool:
    """Whether it was the output that failed: what touches files raises typed errors."""
    return error.filename is None and error.errno in {errno.ENOSPC, errno.EIO, errno.EBADF}


def _report(error: EdgewiseError, *, as_json: bool) -> int:
    from edgewise.cli.output import print_error

    try:
        print_error(error, as_json=as_json)
    except BrokenPipeError:
        _drop_stdout()
    return int(error.exit_code)


def _drop_stdout() -> None:
    # The reader went away, e.g. `edgewise ... | head`. Nothing is left to tell it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: object) -> EdgewiseError:
    import click

    from edgewise.errors import InputError

    assert isinstance(error, click.ClickException)
    context = getattr(error, "ctx", None)
    hint = f"see: {context.command_path} --help" if context is not None else "see: edgewise --help"
    return InputError("usage", error.format_message(), hint=hint)
