"""The README's tables, generated from the results files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "decode.jsonl"
README = ROOT / "README.md"
MEMORY_RESULTS = ROOT / "benchmarks" / "results" / "memory.jsonl"

_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("decode_tok_s", "decode tok/s", lambda v: f"{v:.0f}"),
    ("prefill_tok_s", "prefill tok/s", lambda v: f"{v:.0f}"),
    ("ttft_ms", "TTFT ms", lambda v: f"{v:.0f}"),
    ("cold_start_ms", "cold start ms", lambda v: f"{v:.0f}"),
    ("peak_rss_bytes", "peak RSS MiB", lambda v: f"{v / (1 << 20):.0f}"),
)


def make_table(results: Path = RESULTS) -> str:
    """Return the table as Markdown: median (lower to upper quartile) per figure."""
    header, *trials, overhead = [json.loads(line) for line in results.read_text().splitlines()]
    scenario = header["scenario"]
    rows = [
        "| | " + " | ".join(title for _, title, _ in _COLUMNS) + " |",
        "|---|" + "---|" * len(_COLUMNS),
    ]
    for contender in scenario["contenders"]:
        mine = [t for t in trials if t["contender"] == contender["name"]]
        cells = [_cell([t[key] for t in mine], show) for key, _, show in _COLUMNS]
        rows.append(f"| {contender['title']} | " + " | ".join(cells) + " |")
    config = header["run_config"]
    flash = "on" if config["flash_attention"] else "off"
    pages = "huge pages" if config["huge_pages"] else config["load_mode"]
    note = (
        f"Measured {header['taken']}: {header['cpu']}, {header['cores_usable']} cores, "
        f"llama-cpp-python {header['runtime']}, SmolLM2 135M Q4_1, "
        f"{scenario['decode_tokens']} tokens decoded, {scenario['rounds']} rounds in turn, each a "
        f"fresh process; median (quartiles). Edgewise tuned itself to {config['threads']} threads, "
        f"flash attention {flash}, {pages}. Edgewise's decode rate is "
        f"{_ratio(trials, 'edgewise', 'high-level')} that of the high-level defaults, "
        f"{_ratio(trials, 'edgewise', 'high-level-threads')} with equal threads, and "
        f"{_ratio(trials, 'edgewise', 'raw')} the raw loop's (medians of the ratios per round). "
        f"In one and the same worker, in turn, the session takes {_overhead(overhead)} more "
        "decode time than the raw loop. "
        "Its peak counts both of its processes; the raw loop's counts the worker alone."
    )
    rows += ["", note]
    return "\n".join(rows)


def make_memory_table(results: Path = MEMORY_RESULTS) -> str:
    """Return planned against measured peaks as Markdown."""
    rows = [
        "| model | context | KV | planned | measured | planned / measured |",
        "|---|---|---|---|---|---|",
    ]
    for line in map(json.loads, results.read_text().splitlines()):
        planned, measured = line["planned"]["peak_bytes"], line["measured_bytes"]
        rows.append(
            f"| {line['model']} | {line['context_length']} | {line['kv_type']} "
            f"| {planned / (1 << 20):.1f} | {measured / (1 << 20):.1f} | {line['ratio']:.3f} |"
        )
    return "\n".join(rows)


def update_readme() -> None:
    """Put the tables into the README, between their marks."""
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(readme: str) -> str:
    """Return the README's text with the tables that the results give."""
    for name, make in (("benchmark:decode", make_table), ("memory", make_memory_table)):
        begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
        before, _, rest = readme.partition(begin)
        _, _, after = rest.partition(end)
        readme = f"{before}{begin}\n{make()}\n{end}{after}"
    return readme


def _cell(values: list[float], show: Callable[[float], str]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{show(middle)} ({show(low)}–{show(high)})"


def _ratio(trials: list[dict[str, Any]], one: str, other: str) -> str:
    by_trial: dict[int, dict[str, float]] = {}
    for trial in trials:
        by_trial.setdefault(trial["trial"], {})[trial["contender"]] = trial["decode_tok_s"]
    return f"{statistics.median(r[one] / r[other] for r in by_trial.values()):.2f}×"


def _overhead(line: dict[str, Any]) -> str:
    low, middle, high = statistics.quantiles(
        [session / raw - 1 for raw, session in line["pairs"]], n=4, method="inclusive"
    )
    return f"{middle:.1%} ({low:.1%} to {high:.1%})"
