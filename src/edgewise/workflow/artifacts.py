"""Built artifacts by the names that people use, and what it takes to load one."""

from __future__ import annotations

from edgewise.build import BuildReceipt
from edgewise.core.bundle import TextSettings
from edgewise.core.quantity import Unknown
from edgewise.core.recipe import KvType, Recipe, RunConfig
from edgewise.errors import EdgewiseError, InputError, UnsupportedError, error_from_dict
from edgewise.qualify.parity import Subject
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes.launch import default_loading
from edgewise.runtimes.reports import Capabilities
from edgewise.store import trees
from edgewise.workflow.building import (
    REFERENCE_RUNTIME,
    BuildRequest,
    Built,
    build_for,
    builds,
)
from edgewise.workflow.checkpoints import describe, text_settings
from edgewise.workflow.context import Context

__all__ = ["SOURCE", "find_built", "label", "reference_for", "run_config_for", "subject"]

SOURCE = "source"
_STAND_IN = "chatml"
_SHORTEST_PREFIX = 4


def find_built(context: Context, name: str) -> BuildReceipt:
    """Return the build that a name means.

    Args:
        context: Home and report.
        name: The beginning of a build's fingerprint or of its artifact's digest, ``RUNTIME``, or
            ``RUNTIME/FORMAT`` with the name of the format or of the recipe; the newest counts.

    Raises:
        InputError: no build has that name, or it means builds for several runtimes.
    """
    known = builds(context)
    if len(name) >= _SHORTEST_PREFIX:
        digits = name.lower()
        named = {
            (r.runtime, r.sha256): r
            for _, r in known
            if r.sha256.startswith(digits) or r.fingerprint.startswith(digits)
        }
        if len(named) > 1:  # a file taken over as it is serves several runtimes
            labels = sorted(label(receipt) for receipt in named.values())
            raise InputError(
                "artifact-ambiguous",
                f"{name!r} means several builds: {', '.join(labels)}",
                context={"builds": labels},
                hint="use one of these names, or give more digits",
            )
        if named:
            return next(iter(named.values()))
    runtime, _, form = name.partition("/")
    found = [
        receipt
        for _, receipt in known
        if receipt.runtime == runtime and form.lower() in {"", _form(receipt), receipt.recipe.name}
    ]
    if not found:
        there = sorted({label(receipt) for _, receipt in known})
        raise InputError(
            "artifact-not-found",
            f"nothing has been built that is called {name!r}",
            context={"built": there},
            hint=f"built so far: {', '.join(there)}" if there else "build it: edgewise build",
        )
    return found[-1]


def label(receipt: BuildReceipt) -> str:
    """Return how a build is called: runtime and format."""
    return f"{receipt.runtime}/{_form(receipt)}"


def reference_for(context: Context, receipt: BuildReceipt) -> BuildReceipt:
    """Return the F32 reference of a build's checkpoint, run by the reference runtime.

    Raises:
        UnsupportedError: the reference runtime is not installed.
        EdgewiseError: it cannot be made.
    """
    checkpoint = receipt.checkpoint
    for _, known in reversed(builds(context, checkpoint.sha256)):
        if known.runtime == REFERENCE_RUNTIME:
            return known
    request = BuildRequest(
        model=checkpoint.reference,
        runtimes=(REFERENCE_RUNTIME,),
        recipe=Recipe(name="f32", weights="f32"),
    )
    (made,) = build_for(context, request).results
    return _receipt_of(made)


def subject(
    context: Context,
    receipt: BuildReceipt,
    *,
    context_length: int | None = None,
    threads: int | None = None,
) -> Subject:
    """Return what it takes to load a build, with the runtime's own defaults where nothing is said.

    Raises:
        UnsupportedError: its runtime cannot run here.
        IntegrityError: the artifact or the checkpoint is damaged or gone.
    """
    capabilities = capabilities_in_worker(receipt.runtime)
    if not capabilities.can_run:
        raise UnsupportedError(
            "runtime-cannot-run",
            f"{receipt.runtime} cannot run here: {capabilities.reason}",
            hint="see `edgewise runtime list`",
        )
    text, notes = _text(context, receipt)
    return Subject(
        label=label(receipt),
        runtime=receipt.runtime,
        artifact=trees.verified_path(context.home, receipt.sha256),
        sha256=receipt.sha256,
        run_config=run_config_for(
            context, capabilities, receipt, context_length=context_length, threads=threads
        ),
        text=text,
        text_only=capabilities.text_only,
        notes=notes,
    )


def run_config_for(
    context: Context,
    capabilities: Capabilities,
    receipt: BuildReceipt,
    *,
    context_length: int | None = None,
    threads: int | None = None,
) -> RunConfig:
    """Return how a build is run when nothing has been tuned for it."""
    wanted = context_length or 512
    longest = receipt.context_length
    kv = receipt.recipe.kv or KvType(capabilities.kv_types[0] if capabilities.kv_types else "f16")
    usable = context.device.cpu.cores_usable
    load_mode, huge = default_loading(receipt.runtime)
    return RunConfig(
        context_length=wanted if longest is None else min(wanted, longest),
        kv_type=kv,
        threads=threads or (1 if isinstance(usable, Unknown) else max(1, int(usable.number))),
        flash_attention=receipt.format == "gguf",
        load_mode=load_mode,
        huge_pages=huge,
    )


def _text(context: Context, receipt: BuildReceipt) -> tuple[TextSettings, tuple[str, ...]]:
    """Return the checkpoint's text settings; a base model is asked under a built-in template."""
    description = describe(trees.path_of(context.home, receipt.checkpoint.sha256))
    try:
        return text_settings(description), ()
    except UnsupportedError as error:
        if error.code != "template-missing":
            raise
    note = f"the checkpoint has no chat template: questions are asked under builtin:{_STAND_IN}"
    return text_settings(description, template=_STAND_IN), (note,)


def _form(receipt: BuildReceipt) -> str:
    return receipt.recipe.name if receipt.resolved is None else receipt.resolved.name


def _receipt_of(made: Built) -> BuildReceipt:
    if made.receipt is None:
        error: EdgewiseError = error_from_dict(made.error or {})
        raise error
    return made.receipt
