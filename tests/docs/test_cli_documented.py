"""Every command and option is documented, on the page and in its own help."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from edgewise.cli.root import root
from tests.docs.pages import DOCS, sections

PAGE = DOCS / "reference" / "cli.md"


def commands(
    group: click.Group = root, path: str = "edgewise"
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands())


def section(path: str) -> tuple[str, str]:
    """Return the heading and the text of a command's section."""
    for heading, text in sections(PAGE).items():
        if re.match(rf"`{re.escape(path)}( |`)", heading):
            return heading, text
    pytest.fail(f"docs/reference/cli.md has no section for {path}")


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_argument_is_documented(path: str) -> None:
    heading, _ = section(path)
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Argument):
            assert parameter.human_readable_name.upper() in heading


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_documented(path: str) -> None:
    _, text = section(path)
    missing = [
        option
        for parameter in COMMANDS[path].params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option.startswith("--") and f"| `{option}` |" not in text
    ]
    assert not missing


@pytest.mark.parametrize("path", COMMANDS)
def test_no_documented_option_is_stale(path: str) -> None:
    _, text = section(path)
    real = {o for p in COMMANDS[path].params if isinstance(p, click.Option) for o in p.opts}
    assert set(re.findall(r"^\| `(--[a-z-]+)` \|", text, re.MULTILINE)) <= real


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_has_help(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_no_documented_command_is_stale() -> None:
    headings = [h for h in sections(PAGE) if h.startswith("`edgewise")]
    named = {re.sub(r" (\[|[A-Z]).*", "", h.strip("`")) for h in headings}
    assert named == set(COMMANDS)


def test_the_page_shows_the_exact_help_too() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "```{click} edgewise.cli.root:root" in text
    assert ":nested: full" in text
