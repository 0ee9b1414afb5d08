"""``edgewise runtime list | install | remove | check | serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from edgewise.cli.options import json_option
from edgewise.cli.output import StepPrinter, paint, print_json, print_table, say
from edgewise.errors import ExitCode

if TYPE_CHECKING:
    from edgewise.testing import ContractReport
    from edgewise.workflow.runtimes import RuntimeStatus

__all__ = ["runtime"]


@click.group(no_args_is_help=True)
def runtime() -> None:
    """See which runtimes can export and run here; install, remove or check one."""


@runtime.command("list")
@click.argument("names", nargs=-1)
@json_option
def list_command(names: tuple[str, ...], *, as_json: bool) -> int:
    """Say per runtime whether it can export and run here, and why not.

    Every runtime that is installed is loaded once, in a process of its own, to be sure.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.runtimes import list_runtimes

    printer = StepPrinter()
    found = list_runtimes(Context(report=printer), names or None)
    printer.clear()
    if as_json:
        print_json(list(found))
    else:
        _print_status(found)
    return 0


@runtime.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--run-only", is_flag=True, help="Leave out what only exporting takes.")
@json_option
def install(names: tuple[str, ...], *, run_only: bool, as_json: bool) -> int:
    """Install the libraries of runtimes, each in an environment of its own.

    Versions are those of the lock file that the runtime was tested with. pip's own settings
    (index, proxy, certificates) are used. EDGEWISE_RUNTIMES names the folder.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.runtimes import install_runtimes

    printer = StepPrinter()
    found = install_runtimes(Context(report=printer), names, export=not run_only)
    printer.clear()
    if as_json:
        print_json(list(found))
    else:
        _print_status(found)
    return 0


@runtime.command()
@click.argument("name")
@json_option
def remove(name: str, *, as_json: bool) -> int:
    """Remove a runtime's environment. What was built with it stays."""
    from edgewise.workflow.context import Context
    from edgewise.workflow.runtimes import remove_runtime

    gone = remove_runtime(Context(report=StepPrinter()), name)
    if as_json:
        print_json({"runtime": name, "removed": gone})
    else:
        say(f"{name} is removed" if gone else f"{name} was not installed")
    return 0


@runtime.command()
@click.argument("artifact")
@json_option
def check(artifact: str, *, as_json: bool) -> int:
    """Run the engine contract on a built ARTIFACT, such as onnx-genai/int4.

    ARTIFACT is RUNTIME, RUNTIME/FORMAT or the beginning of a digest; see `edgewise build`.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.contract import check_contract

    printer = StepPrinter()
    report = check_contract(Context(report=printer), artifact)
    printer.clear()
    if as_json:
        print_json(report)
    else:
        _print_contract(report)
    return int(ExitCode.OK if report.passed else ExitCode.NEGATIVE)


@runtime.command()
@click.argument("artifact")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the page's worker.")
@json_option
def serve(artifact: str, *, port: int, threads: int | None, as_json: bool) -> int:
    """Serve the page of a browser build, such as wllama, on this machine only.

    Open the printed address in a browser; Ctrl-C ends it. The page reaches nothing but this
    server.
    """
    from edgewise.workflow.context import Context
    from edgewise.workflow.serving import serve_artifact

    printer = StepPrinter()
    server = serve_artifact(Context(report=printer), artifact, port=port, threads=threads)
    printer.clear()
    try:
        if as_json:
            print_json({"url": server.url})
        else:
            print(server.url, flush=True)
        server.wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
    return 0


def _print_status(found: tuple[RuntimeStatus, ...]) -> None:
    rows = [
        [
            status.name,
            status.state,
            status.capabilities.version or "",
            _yes(status.capabilities.can_export),
            _yes(status.capabilities.can_run),
            _disk(status),
            _why(status),
        ]
        for status in found
    ]
    print_table(["runtime", "state", "version", "export", "run", "disk", "why not, or where"], rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _disk(status: RuntimeStatus) -> str:
    if status.size_bytes is not None:
        return f"{status.size_bytes >> 20} MiB"
    if status.takes_bytes:
        return f"takes {status.takes_bytes >> 20} MiB"
    return ""


def _why(status: RuntimeStatus) -> str:
    capabilities = status.capabilities
    if capabilities.reason:
        return capabilities.reason
    where = ", ".join(capabilities.backends)
    unverified = "; ".join(capabilities.unverified)
    return f"{where}; unverified: {unverified}" if unverified else where


def _print_contract(report: ContractReport) -> None:
    colours = {"pass": "green", "fail": "red", "refused-as-declared": "yellow"}
    rows = [[str(check.verdict), check.name, check.detail] for check in report.checks]
    print_table(["verdict", "check", "seen"], rows)
    failed = len(report.failures)
    verdict = "fail" if failed else "pass"
    words = f"{failed} of {len(report.checks)} checks failed" if failed else "the contract holds"
    say(f"{paint(words, colours[verdict])}: {report.runtime} {report.version}, {report.artifact}")
