"""Compare two built artifacts, and keep what was found as evidence."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from edgewise.build import BuildReceipt
from edgewise.errors import InputError, IntegrityError
from edgewise.qualify.parity import ParityReport, References, compare_artifacts
from edgewise.qualify.parity_gate import gate_for
from edgewise.qualify.texts import PROSE
from edgewise.store.regular import read_regular
from edgewise.workflow.artifacts import SOURCE, find_built, reference_for, subject
from edgewise.workflow.context import Context, Step

__all__ = ["EVAL_DATA_VARIABLE", "ParityRequest", "check_parity", "drafts_left_out", "parity_of"]

EVAL_DATA_VARIABLE = "EDGEWISE_EVAL_DATA"
_WIKITEXT = Path("wikitext2") / "test.txt"
_TEXT_BYTES_MAX = 1 << 30


class ParityRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compare.

    Attributes:
        first: The reference: the name of a build, or ``source`` for the checkpoint in F32.
        second: The build that is judged.
        text_file: Text to score on; by default WikiText-2 where ``EDGEWISE_EVAL_DATA`` has it,
            else a short text of Edgewise's own.
        windows: Stretches of text that are scored.
        window_tokens: Tokens of each.
    """

    first: str
    second: str
    text_file: str | None = None
    windows: int = 4
    window_tokens: int = 64


def check_parity(
    context: Context, request: ParityRequest, references: References | None = None
) -> tuple[ParityReport, str]:
    """Return the parity of two builds and the digest of its evidence.

    ``references`` spares asking a reference again that was asked before.

    Raises:
        InputError: a build is not known, or the text cannot be used.
        UnsupportedError: a runtime is not installed.
        IntegrityError: an artifact is damaged.
        AdapterError: a runtime failed.
    """
    second = find_built(context, request.second)
    if request.first == SOURCE:
        first = reference_for(context, second)
    else:
        first = find_built(context, request.first)
    return parity_of(context, first, second, request, references)


def parity_of(
    context: Context,
    first: BuildReceipt,
    second: BuildReceipt,
    request: ParityRequest,
    references: References | None = None,
) -> tuple[ParityReport, str]:
    """Return the parity of two receipts and the digest of its evidence; see above."""
    text, material = _material(request.text_file)

    def progress(message: str) -> None:
        context.report(Step(stage="parity", status="progress", message=message))

    message = f"{second.runtime} against {first.runtime}, on {material}"
    context.report(Step(stage="parity", status="start", message=message))
    with context.home.work_folder() as work:
        report = compare_artifacts(
            subject(context, first),
            subject(context, second),
            text=text,
            material=material,
            gate=gate_for(second.resolved, same_weights=second.copied),
            work=work,
            references=references or References(work),
            windows=request.windows,
            window_tokens=request.window_tokens,
            progress=progress,
        )
    missing = (*report.missing, *drafts_left_out(context, first, second))
    report = msgspec.structs.replace(report, missing=missing)
    digest = context.record("parity", second.fingerprint, report)
    return report, digest


def drafts_left_out(context: Context, *receipts: BuildReceipt) -> list[str]:
    """Return whose draft models a comparison leaves out: it loads builds by themselves."""
    digests = {receipt.sha256 for receipt in receipts}
    found = []
    for name in context.bundles.fingerprints():
        with contextlib.suppress(IntegrityError):  # a damaged bundle is its own matter
            found.append(context.bundles.get(name).deployment)
    return [
        f"the draft model of the deployment {one.fingerprint[:12]}: builds are compared without "
        "one, and it changes no answer"
        for one in found
        if one.draft is not None and one.artifact.sha256 in digests
    ]


def _material(text_file: str | None) -> tuple[str, str]:
    if text_file is not None:
        return _read(Path(text_file)), Path(text_file).name
    folder = os.environ.get(EVAL_DATA_VARIABLE)
    path = Path(folder) / _WIKITEXT if folder else None
    if path is not None and path.is_file():
        return _read(path), "WikiText-2 test"
    return PROSE * 8, f"a text of Edgewise's own ({EVAL_DATA_VARIABLE} names no WikiText-2)"


def _read(path: Path) -> str:
    try:
        return read_regular(path, limit_bytes=_TEXT_BYTES_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "text-unreadable",
            f"{path} cannot be read as UTF-8 text: {error}",
            hint="name a text file",
        ) from error
