"""Tables of the documentation that come from the adapters themselves.

``docs/conf.py`` writes them before each build, so that they cannot drift from the code; the tests
look at the same functions. Nothing native is loaded: formats and environments are plain data.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from edgewise.core.formats import OfferedFormat, TensorFormat
from edgewise.runtimes import registry

__all__ = ["OFFERS", "covered", "environments_table", "formats_table", "write_tables"]

# What each exporter offers. Runtimes that offer the same from one tuple share a table.
OFFERS: dict[str, str] = {
    "llamacpp": "edgewise.runtimes.llamacpp.formats:FORMATS",
    "ik": "edgewise.runtimes.ik.exporter:FORMATS",
    "onnx-genai": "edgewise.runtimes.onnx_genai.formats:FORMATS",
    "openvino": "edgewise.runtimes.openvino.formats:FORMATS",
    "executorch": "edgewise.runtimes.executorch.formats:FORMATS",
    "coreml": "edgewise.runtimes.executorch.formats:COREML_FORMATS",
    "litert": "edgewise.runtimes.litert.formats:FORMATS",
    "mlx": "edgewise.runtimes.mlx.formats:FORMATS",
    "tvm": "edgewise.runtimes.webllm.formats:FORMATS",
    "transformers": "edgewise.runtimes.transformers.formats:FORMATS",
}
_SAME = {"litert-lm": "litert", "webllm": "tvm"}
# Runtimes whose exporter takes a file over, or which export nothing.
_NONE = ("qnn", "wllama")
_HEAD = ("Format", "Weights", "Activations", "Embedding", "Head", "Methods")


def formats_table(table: str) -> str:
    """Return what a runtime's exporter offers, most recommended first, with notes below."""
    offers = _offers(table)
    notes = {note: f"{index}" for index, note in enumerate(_notes(offers), start=1)}
    rows = [_row(offer, notes) for offer in offers]
    lines = [_line(_HEAD), "|" + "---|" * len(_HEAD), *map(_line, rows)]
    if notes:
        lines += ["", *(f"{number}. {_sentence(note)}" for note, number in notes.items())]
    return "\n".join(lines) + "\n"


def environments_table() -> str:
    """Return what each environment holds and takes."""
    shared: dict[str, list[str]] = {}
    for name in registry.names():
        spec = registry.adapter(name).environment
        if spec is not None:
            shared.setdefault(spec.name, []).append(name)
    lines = [
        "| Environment | For | To run | To export besides | To run, MiB | To export besides, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for environment, users in shared.items():
        spec = registry.adapter(users[0]).environment
        assert spec is not None
        npm = tuple(f"{each.name}@{each.version} (npm)" for each in spec.npm)
        cells = (
            f"`{environment}`",
            ", ".join(f"`{name}`" for name in users),
            ", ".join(f"`{each}`" for each in (*spec.run, *npm)),
            ", ".join(f"`{each}`" for each in spec.export) or "nothing",
            f"{spec.run_bytes >> 20:,}",
            f"{spec.export_bytes >> 20:,}" if spec.export else "",
        )
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def write_tables(folder: Path) -> None:
    """Write every table into ``folder``."""
    folder.mkdir(exist_ok=True)
    for table in OFFERS:
        (folder / f"formats-{table}.md").write_text(formats_table(table), encoding="utf-8")
    (folder / "environments.md").write_text(environments_table(), encoding="utf-8")


def covered() -> set[str]:
    """Return the runtimes that a table, or the lack of one, accounts for."""
    return {*OFFERS, *_SAME, *_NONE}


def _offers(table: str) -> tuple[OfferedFormat, ...]:
    module, _, attribute = OFFERS[table].partition(":")
    found: tuple[OfferedFormat, ...] = getattr(import_module(module), attribute)
    return found


def _notes(offers: tuple[OfferedFormat, ...]) -> list[str]:
    return list(dict.fromkeys(offer.note for offer in offers if offer.note))


def _row(offer: OfferedFormat, notes: dict[str, str]) -> tuple[str, ...]:
    mark = f" ({notes[offer.note]})" if offer.note else ""
    return (
        f"`{offer.name}`{mark}",
        _exact(offer.weights),
        str(offer.activation),
        "the same" if offer.embedding == offer.weights else _exact(offer.embedding),
        "the same" if offer.output == offer.weights else _exact(offer.output),
        ", ".join(offer.methods),
    )


def _exact(found: TensorFormat) -> str:
    if found.kind in {"float", "int"}:
        return str(found)
    kind = "symmetric" if found.symmetric else "with minima"
    return f"{found.bits}-bit blocks of {found.group_size}, {kind}, scales {found.scale}"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _sentence(note: str) -> str:
    text = note.strip().rstrip(";.")
    return text[:1].upper() + text[1:] + "."
