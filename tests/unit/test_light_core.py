"""The core install stays light: its size, and that it works without what runtimes bring."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

LIMIT_BYTES = 60_000_000
# Brought by runtimes; the core must not need them.
HEAVY = ("numpy", "torch", "llama_cpp", "gguf", "tokenizers", "transformers", "onnxruntime")
PARENT = (
    "edgewise",
    "edgewise.api",
    "edgewise.workflow.up",
    "edgewise.workflow.building",
    "edgewise.workflow.parity",
    "edgewise.workflow.comparing",
    "edgewise.workflow.contract",
    "edgewise.workflow.runtimes",
    "edgewise.workflow.converting",
    "edgewise.workflow.opening",
    "edgewise.workflow.calibrating",
    "edgewise.workflow.hybrid",
    "edgewise.testing",
)


def closure(name: str, found: dict[str, int]) -> dict[str, int]:
    """Return ``distribution -> bytes on disk`` of a distribution and all it requires."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return found
    distribution = importlib.metadata.distribution(name)
    files = [Path(file.locate()) for file in distribution.files or ()]
    found[key] = sum(f.stat().st_size for f in files if f.exists() and "__pycache__" not in str(f))
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            closure(requirement.name, found)
    return found


def test_the_core_install_is_small_and_has_no_torch() -> None:
    found = closure("edgewise", {})
    assert not set(found) & {name.replace("_", "-") for name in HEAVY}
    assert sum(found.values()) < LIMIT_BYTES, sorted(found.items(), key=lambda pair: -pair[1])[:5]


def test_the_core_imports_without_what_runtimes_bring() -> None:
    code = (
        f"import sys\nfor name in {HEAVY!r}:\n    sys.modules[name] = None\n"
        f"import importlib\nfor name in {PARENT!r}:\n    importlib.import_module(name)\n"
        "from edgewise.runtimes import registry\n"
        "for name in registry.names():\n    registry.adapter(name)\n"
        "from edgewise.cli.root import COMMANDS\n"
        "for module, _, _ in COMMANDS.values():\n"
        "    importlib.import_module(f'edgewise.cli.{module}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_probe_says_what_it_cannot_measure_without_numpy() -> None:
    code = (
        "import sys\nsys.modules['numpy'] = None\n"
        "from edgewise.device.kernels import measure_matmul\nprint(measure_matmul())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy is not installed" in done.stdout
