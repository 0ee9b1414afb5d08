"""Tools: how a template spells calls, prompts with tools in them, and calls out of answers.

Only what the model itself writes is parsed. What a tool answered or a user wrote is content.
"""

from edgewise.run.tools.detect import detect_format
from edgewise.run.tools.formats import PROMPT_FORMAT, ToolFormat
from edgewise.run.tools.grammar import structure_for
from edgewise.run.tools.parse import ParsedCalls, parse_calls
from edgewise.run.tools.stream import CallParser
from edgewise.run.tools.validate import ToolChecker

__all__ = [
    "PROMPT_FORMAT",
    "CallParser",
    "ParsedCalls",
    "ToolChecker",
    "ToolFormat",
    "detect_format",
    "parse_calls",
    "structure_for",
]
