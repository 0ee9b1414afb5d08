"""Sphinx configuration. The build reads no network."""

from __future__ import annotations

import sys
from pathlib import Path

import edgewise
from edgewise.core.quantity import Unknown
from edgewise.planner import load_tier, tier_names

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tools.documentation_tables import write_tables  # noqa: E402 - found by the line above

project = "Edgewise"
author = "The Edgewise developers"
copyright = "The Edgewise developers, Apache-2.0"
release = version = edgewise.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
exclude_patterns = ["_build", "_generated", "adr/template.md"]
nitpicky = False  # standard-library types would need another project's inventory, off the network

html_theme = "furo"
html_title = f"Edgewise {release}"
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Examples that need a model are plain code blocks; the test suite runs those.
doctest_test_doctest_blocks = ""
doctest_global_setup = """
import os, tempfile
os.environ["EDGEWISE_HOME"] = tempfile.mkdtemp()
import edgewise
"""


def _cell(quantity: object, scale: float, unit: str) -> str:
    if isinstance(quantity, Unknown):
        return "unknown"
    number = getattr(quantity, "number", 0.0) / scale
    return f"{number:,.1f} {unit} ({type(quantity).__name__.lower()})"


def _tier_table() -> str:
    """Return the table of reference tiers, from the data that ships with the package."""
    lines = [
        "| Tier | Device class | Memory budget | Read bandwidth | f32 compute |",
        "|---|---|---|---|---|",
    ]
    for name in tier_names():
        tier = load_tier(name)
        cells = (
            f"`{name}`",
            tier.title,
            _cell(tier.memory_budget_bytes, 1 << 20, "MiB"),
            _cell(tier.memory_bandwidth_bytes_s, 1e9, "GB/s"),
            _cell(tier.compute_gflops, 1, "GFLOPS"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_GENERATED = HERE / "_generated"
_GENERATED.mkdir(exist_ok=True)
(_GENERATED / "tiers.md").write_text(_tier_table(), encoding="utf-8")
write_tables(_GENERATED)
