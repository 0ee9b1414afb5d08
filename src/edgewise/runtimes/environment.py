"""What a runtime needs installed in an environment of its own.

Runtimes' libraries contradict one another (pins of torch, transformers, protobuf), so each gets
a virtual environment. ``run`` is what it takes to run an artifact; ``export`` comes on top and is
often ten times as large, so a device that only runs need not have it.
"""

from __future__ import annotations

import msgspec

__all__ = ["BASE_REQUIREMENTS", "EnvironmentSpec", "NpmPackage"]

# What the light core of Edgewise imports in a worker, whatever the runtime.
BASE_REQUIREMENTS = (
    "filelock",
    "gguf",
    "jinja2",
    "jsonschema",
    "llguidance",
    "msgspec",
    "numpy",
    "platformdirs",
    "psutil",
    "rfc8785",
    "safetensors",
    "tokenizers",
)


class NpmPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package of the npm registry, pinned by its integrity string (``sha512-...``)."""

    name: str
    version: str
    integrity: str


class EnvironmentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment.

    Attributes:
        name: Name of the environment; runtimes that name the same one share it.
        package: Folder of the runtime below ``edgewise.runtimes``, which holds ``lock.txt``.
        run: Requirements to run an artifact, as pip takes them.
        export: Further requirements to export one.
        run_bytes: Disk that the first part takes, measured, with the base.
        export_bytes: Disk that the second part takes on top.
        npm: Packages of the npm registry that are put beside.
        note: What a person should know before installing.
    """

    name: str
    package: str
    run: tuple[str, ...]
    export: tuple[str, ...] = ()
    run_bytes: int = 0
    export_bytes: int = 0
    npm: tuple[NpmPackage, ...] = ()
    note: str = ""
