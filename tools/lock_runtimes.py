"""Write lock files from installed environments: ``python tools/lock_runtimes.py [NAME ...]``.

For whoever changes a runtime's requirements: edit them in the adapter, clear the pins that should
move, run ``edgewise runtime install NAME``, try it, then run this. It lists what is installed,
exactly, and nothing that belongs to one machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from edgewise.runtimes import registry
from edgewise.runtimes.launch import environment_folder, installed, python_of

PACKAGES = Path(__file__).resolve().parent.parent / "src" / "edgewise" / "runtimes"
LEFT_OUT = {"pip", "wheel", "edgewise"}


def frozen(python: Path) -> list[str]:
    """Return ``name==version`` of everything an environment holds, sorted."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.partition("+")[0] for line in listed.split() if "==" in line]
    return sorted(
        (line for line in lines if line.partition("==")[0].lower() not in LEFT_OUT), key=str.lower
    )


def main(names: list[str]) -> None:
    for name in names or registry.names():
        spec = registry.adapter(name).environment
        if spec is None or installed(spec) is None:
            print(f"-- {name}: not installed", file=sys.stderr)
            continue
        lines = frozen(python_of(environment_folder(spec)))
        (PACKAGES / spec.package / "lock.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"ok {name}: {len(lines)} pins", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
