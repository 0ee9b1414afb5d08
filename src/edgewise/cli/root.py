"""The root command. Its help is written here, so that listing imports no subcommand."""

from __future__ import annotations

import importlib
from typing import cast

import click

from edgewise._version import __version__

__all__ = ["COMMANDS", "root"]

# Command -> (module, attribute, short help), in the order of the lifecycle.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("up", "up", "Set a model up on this device, step by step, and answer a prompt."),
    "probe": ("probe", "probe_command", "Say what this device is and what it can do."),
    "plan": ("plan", "plan", "Say whether a model fits a tier, and how fast it can be."),
    "fetch": ("fetch", "fetch", "Fetch a checkpoint into the home."),
    "convert": ("convert", "convert", "Convert a checkpoint between GGUF and safetensors."),
    "build": ("build", "build", "Build a checkpoint for one runtime or for many."),
    "parity": ("parity", "parity", "Say how far one build is from another, or from its source."),
    "compare": ("compare", "compare", "Compare everything that was built from a checkpoint."),
    "runtime": ("runtime", "runtime", "List, install, remove and check runtimes."),
    "run": ("run", "run", "Answer one prompt with the active model."),
    "chat": ("chat", "chat", "Talk with the active model."),
    "serve": ("serve", "serve", "Serve the active model to local programs."),
    "route": ("route", "route", "Say where a request would run, and why."),
    "policy": ("policy", "policy", "Check, sign and compare routing policies."),
    "consent": (
        "consent",
        "consent",
        "See, give, refuse and take back consent to send data off this device.",
    ),
    "queue": ("queue", "queue", "See what waits for the cloud, and decide about it."),
    "egress": ("egress", "egress", "Check that what should stay on this device does."),
    "calibrate": ("calibrate", "calibrate", "Learn which local answers may be kept."),
    "classify": ("classify", "classify", "Learn to tell the task of a request from its text."),
    "minimise": ("minimise", "minimise", "Show what of a text would leave this device."),
    "fingerprint": ("fingerprint", "fingerprint", "Show what the active deployment is made of."),
    "diff": ("fingerprint", "diff_command", "Say how two deployments differ and what that costs."),
    "evidence": ("evidence", "evidence", "List evidence, or open a piece of it."),
}

_EPILOG = """\b
Exit codes: 0 ok, 1 bug, 2 input, 3 unsupported, 4 integrity, 5 resource,
6 remote, 7 runtime failure, 10 a negative verdict, 130 interrupted.
Results go to standard output, everything else to standard error.
EDGEWISE_HOME names the folder that holds models, bundles and evidence,
EDGEWISE_RUNTIMES the one for the runtimes' environments."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        return cast(
            "click.Command", getattr(importlib.import_module(f"edgewise.cli.{module}"), attribute)
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    epilog=_EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="edgewise")
def root() -> None:
    """From a model checkpoint to a qualified, observable feature on a device.

    Start with `edgewise up`: it sets a small model up and answers a prompt, and shows each step.
    """
