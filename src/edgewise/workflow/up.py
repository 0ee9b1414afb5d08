"""From nothing to an active, qualified deployment on this device.

probe, a first plan from what is declared, fetch, the full plan, build, tune, smoke-qualify,
activate. Every step is reported as it happens. What already holds (a stored checkpoint, a
probe, a tuning of the same artifact) is reused and said to be. Nothing becomes active before
every step before it has succeeded.
"""

from __future__ import annotations

import msgspec

from edgewise.bench.tuner import Tuning, tune
from edgewise.build import BuildReceipt, build
from edgewise.core.bundle import Bundle, TextSettings
from edgewise.core.quantity import Quantity, Unknown
from edgewise.core.recipe import Recipe, RunConfig
from edgewise.core.units import mib
from edgewise.device import DeviceProfile
from edgewise.models.architecture import ModelShape
from edgewise.models.sources import default_model, registry_models
from edgewise.planner import Plan, Verdict, make_plan
from edgewise.qualify import SmokeReport, smoke
from edgewise.runtimes import registry
from edgewise.runtimes.reports import Footprint
from edgewise.runtimes.stepped import refuse_parallel
from edgewise.store import trees
from edgewise.workflow import candidate_setup, planning
from edgewise.workflow.checkpoints import (
    Checkpoint,
    Description,
    describe,
    fetch_checkpoint,
    text_settings,
)
from edgewise.workflow.context import Context, Step
from edgewise.workflow.deployment import make_bundle, make_deployment
from edgewise.workflow.draft_setup import Draft, fetch_draft, require_place
from edgewise.workflow.probing import known_or_measured_device
from edgewise.workflow.up_report import UpReport, UpRequest

__all__ = ["UpReport", "UpRequest", "bring_up"]


def bring_up(context: Context, request: UpRequest) -> UpReport:
    """Return the report of setting a model up on this device.

    Raises:
        InputError: the model reference or an option is wrong.
        IntegrityError: bytes are not what was promised.
        RemoteError: the model cannot be fetched.
        UnsupportedError: the runtime is missing or cannot do what was asked.
        AdapterError: the runtime failed.
        ResourceError: disk, memory or a lock ran out.
    """
    return _BringUp(context, request).run()


class _BringUp:
    def __init__(self, context: Context, request: UpRequest) -> None:
        self._context = context
        self._request = request
        self._evidence: dict[str, str] = {}
        self._peak: Quantity | None = None
        self._draft: Draft | None = None

    def run(self) -> UpReport:
        # What cannot be is said before minutes of measuring.
        adapter = registry.adapter(self._request.runtime)
        wanted = RunConfig(parallel=self._request.parallel)
        refuse_parallel(adapter.name, wanted, getattr(adapter, "parallel_max", 1))
        if self._request.draft is not None:
            require_place(self._request.runtime, self._request.parallel)
        profile = self._probe()
        if (refused := self._plan_ahead(profile)) is not None:
            return refused
        checkpoint = fetch_checkpoint(
            self._context, self._request.model, offline=self._request.offline
        )
        description = describe(trees.path_of(self._context.home, checkpoint.sha256))
        text = text_settings(description, template=self._request.template)
        self._warn(description)
        self._draft = self._fetch_draft(checkpoint, description)
        self._capabilities = candidate_setup.require_runtime(self._request.runtime)
        plan = self._plan(profile, checkpoint, description, checkpoint.sha256)
        report = UpReport(status="ready", checkpoint=checkpoint, plan=plan)
        if not self._worth_building(plan):
            return self._stopped(report, _PLAN_STATUS[plan.verdict], plan.reasons)
        with self._context.home.lock("up", on_wait=self._waiting):
            return self._build_and_activate(report, profile, checkpoint, description, text)

    def _build_and_activate(
        self,
        report: UpReport,
        profile: DeviceProfile,
        checkpoint: Checkpoint,
        description: Description,
        text: TextSettings,
    ) -> UpReport:
        assert report.plan is not None
        threads = report.plan.run_config.threads
        receipt = self._build(checkpoint, self._request.recipe, threads)
        report = msgspec.structs.replace(report, receipt=receipt)
        artifact = trees.path_of(self._context.home, receipt.sha256)
        built = candidate_setup.as_built(description, receipt, artifact)
        copied = receipt.copied
        if self._draft is not None:
            made = self._build(self._draft.checkpoint, self._request.draft_recipe, threads, "draft")
            self._draft = self._draft.built(self._context, made, model=receipt)
            report = msgspec.structs.replace(report, draft_receipt=made)
            copied = copied and made.copied
        if not copied:
            # Other weights than the checkpoint's: what was planned so far was its, not theirs.
            plan = self._plan(profile, checkpoint, built, receipt.sha256)
            report = msgspec.structs.replace(report, plan=plan)
            if not self._worth_building(plan):
                return self._stopped(report, _PLAN_STATUS[plan.verdict], plan.reasons)
        assert report.plan is not None
        config = candidate_setup.within(report.plan.run_config, receipt)
        tuning = None
        if receipt.format == "gguf" and self._capabilities.logits:
            tuning = self._tune(profile, receipt, config)
            config = tuning.chosen
        self._say("qualify", "start", f"smoke test with {_words(config)}")
        beside = None if self._draft is None else self._draft.artifact
        checked = smoke(self._request.runtime, artifact, config, draft=beside)
        deployment = make_deployment(
            self._context.device,
            checkpoint=checkpoint,
            description=description,
            text=text,
            receipt=receipt,
            run_config=config,
            partition=checked.partition,
            runtime=checked.runtime,
            draft=self._draft,
        )
        report = msgspec.structs.replace(report, tuning=tuning, smoke=checked)
        self._record("smoke", deployment.fingerprint, _with_passed(checked))
        if not checked.passed:
            return self._stopped(report, "not-qualified", checked.reasons)
        fell = checked.partition.fallbacks
        fallen = f"fell back: {', '.join(fell)}" if fell else "nothing fell back"
        self._say("qualify", "done", f"{len(checked.checks)} checks passed, {fallen}")
        self._peak = checked.memory.peak_resident_bytes
        plan = self._plan_with(config, profile, checkpoint, built)
        report = msgspec.structs.replace(report, plan=plan)
        bundle = make_bundle(
            deployment,
            checkpoint=checkpoint,
            description=description,
            text=text,
            memory=plan.memory,
            evidence=tuple(self._evidence.values()),
            draft=self._draft,
        )
        return self._activate(report, bundle)

    def _probe(self) -> DeviceProfile:
        profile, digest = known_or_measured_device(
            self._context, measure_again=self._request.measure_again
        )
        self._evidence["device"] = digest
        return profile

    def _fetch_draft(self, checkpoint: Checkpoint, description: Description) -> Draft | None:
        if self._request.draft is None:
            return None
        return fetch_draft(
            self._context,
            self._request.draft,
            model=checkpoint.reference,
            description=description,
            offline=self._request.offline,
        )

    def _plan_ahead(self, profile: DeviceProfile) -> UpReport | None:
        """Refuse before a download what declared sizes already rule out."""
        known = registry_models().get(self._request.model or default_model())
        budget = profile.memory.budget_bytes
        if known is None or isinstance(budget, Unknown):
            return None
        size, room = known.size_bytes, int(budget.number)
        kind = type(budget).__name__.lower()
        words = f"{mib(size)} of weights (declared) against {mib(room)} available ({kind})"
        if size > room:
            reason = f"{words}: {mib(size - room)} short, so nothing is fetched"
            return self._stopped(UpReport(status="ready"), "does-not-fit", (reason,))
        self._say("plan", "note", f"{words}: worth fetching")
        return None

    def _plan(
        self,
        profile: DeviceProfile,
        checkpoint: Checkpoint,
        description: Description,
        subject: str,
    ) -> Plan:
        request = planning.PlanRequest(
            model=self._request.model,
            context_length=self._request.context_length,
            kv_type=candidate_setup.kv_type_of(self._capabilities, self._request.kv_type),
            runtime=self._request.runtime,
            parallel=self._request.parallel,
        )
        times = f"{request.parallel} times " if request.parallel > 1 else ""
        words = f"{times}context {request.context_length}, KV {request.kv_type}"
        self._say("plan", "start", words)
        config = planning.default_run_config(self._context, request, description)
        plan = self._plan_with(config, profile, checkpoint, description)
        self._record("plan", subject, plan)
        self._say("plan", "done", f"{plan.verdict}: {'; '.join(plan.reasons)}")
        return plan

    def _plan_with(
        self,
        config: RunConfig,
        profile: DeviceProfile,
        checkpoint: Checkpoint,
        description: Description,
    ) -> Plan:
        facts: dict[str, str | int | None] = {
            "name": checkpoint.reference,
            "sha256": checkpoint.sha256,
        }
        request = planning.PlanRequest(model=self._request.model)
        return make_plan(
            planning.candidate(
                description,
                config,
                facts,
                app_bytes=planning.app_share(request, here=True),
                draft=None if self._draft is None else self._draft.candidate,
            ),
            planning.device_tier(profile, huge_pages=config.huge_pages),
            self._footprint,
        )

    def _footprint(self, shape: ModelShape, run_config: RunConfig) -> Footprint:
        lines = registry.adapter(self._request.runtime).footprint(shape, run_config)
        return lines if self._peak is None else candidate_setup.with_measured(lines, self._peak)

    def _worth_building(self, plan: Plan) -> bool:
        """Whether to go on: it fits, or only measuring can tell."""
        if plan.verdict is Verdict.FITS:
            return True
        if not candidate_setup.only_workspace_open(plan):
            return False
        self._say(
            "plan", "note", "what this runtime's workspace takes is measured once it is built"
        )
        return True

    def _build(
        self, checkpoint: Checkpoint, recipe: Recipe, threads: int, which: str = ""
    ) -> BuildReceipt:
        budget = self._context.device.memory.budget_bytes
        words = f"recipe {recipe.name} for {self._request.runtime}"
        self._say("build", "start", f"{which} model, {words}" if which else words)
        receipt = build(
            self._context.home,
            checkpoint.identity,
            recipe,
            runtime=self._request.runtime,
            threads=threads,
            memory_limit_bytes=None if isinstance(budget, Unknown) else int(budget.number),
        )
        self._record("build", receipt.sha256, receipt, which=which)
        if receipt.double_quantised:
            self._say("build", "note", "the source was quantised already: quality suffers twice")
        for deviation in receipt.deviations[:8]:
            words = f"{deviation.tensor}: asked {deviation.asked}, got {deviation.got}"
            self._say("build", "note", f"{words} ({deviation.reason})")
        if len(receipt.deviations) > 8:
            more = len(receipt.deviations) - 8
            self._say("build", "note", f"{more} more tensors differ; the receipt names each")
        what = "taken over unchanged" if receipt.copied else "quantised"
        self._say("build", "done", f"{what}, {mib(receipt.size_bytes)}, {receipt.sha256[:12]}")
        return receipt

    def _tune(self, profile: DeviceProfile, receipt: BuildReceipt, base: RunConfig) -> Tuning:
        known = self._known_tuning(profile, receipt, base)
        if known is not None and not self._request.measure_again:
            taken = " (measured beside other work)" if known.contended else ""
            self._say("tune", "reused", _words(known.chosen) + taken)
            return known
        self._say("tune", "start", "threads and the way of loading, measured")
        tuning = tune(
            self._request.runtime,
            trees.path_of(self._context.home, receipt.sha256),
            base,
            threads=range(1, base.threads + 1) if base.threads <= 2 else _spread(base.threads),
            device=profile.digest,
            contended=bool(profile.contention.contended),
            progress=lambda done, total, what: self._context.report(
                Step(stage="tune", status="progress", message=what, done=done, total=total)
            ),
        )
        for why in tuning.skipped:
            self._say("tune", "note", f"not tried: {why}")
        self._record("tuning", receipt.sha256, tuning)
        best, worst = tuning.trials[0], tuning.trials[-1]
        ratio = worst.reference_ms / best.reference_ms
        beside = " beside other work" if tuning.contended else ""
        rates = f"decode {_rate(best.decode_tok_s)}, prefill {_rate(best.prefill_tok_s)} tok/s"
        words = (
            f"{_words(best.run_config)}: {rates} (measured{beside}), "
            f"{ratio:.2f}x as fast as the slowest"
        )
        self._say("tune", "done", words)
        return tuning

    def _known_tuning(
        self, profile: DeviceProfile, receipt: BuildReceipt, base: RunConfig
    ) -> Tuning | None:
        found = self._context.evidence.find(kind="tuning", subject=receipt.sha256)
        for digest, piece in reversed(found):
            if piece.device != profile.digest:
                continue
            tuning = msgspec.convert(piece.figures, type=Tuning)
            if tuning.contended and not profile.contention.contended:
                return None  # the device is quiet now: measure anew
            chosen = tuning.chosen
            kept = ("context_length", "kv_type", "batch_tokens", "parallel")
            if all(getattr(chosen, name) == getattr(base, name) for name in kept):
                self._evidence["tuning"] = digest
                return tuning
        return None

    def _activate(self, report: UpReport, bundle: Bundle) -> UpReport:
        self._context.bundles.add(bundle)
        previous = self._context.bundles.activate(bundle.fingerprint)
        same = previous == bundle.fingerprint
        if not same:
            self._record("activation", bundle.fingerprint, {"previous": previous})
        self._say(
            "activate",
            "reused" if same else "done",
            f"{bundle.fingerprint[:12]} {'stays' if same else 'is now'} active",
        )
        return msgspec.structs.replace(
            report, fingerprint=bundle.fingerprint, previous=previous, evidence=self._evidence
        )

    def _waiting(self) -> None:
        self._say("build", "note", "waiting for another process that is setting a model up")

    def _stopped(self, report: UpReport, status: str, reasons: tuple[str, ...]) -> UpReport:
        return msgspec.structs.replace(
            report, status=status, reasons=reasons, evidence=self._evidence
        )

    def _warn(self, description: Description) -> None:
        for code in description.tokenizer.warnings:
            self._say("fetch", "note", f"tokenizer: {code}")

    def _record(self, kind: str, subject: str, figures: object, *, which: str = "") -> None:
        cites = tuple(self._evidence.values())
        name = f"{which}-{kind}" if which else kind
        self._evidence[name] = self._context.record(kind, subject, figures, cites=cites)

    def _say(self, stage: str, status: str, message: str) -> None:
        self._context.report(Step(stage=stage, status=status, message=message))


_PLAN_STATUS = {
    Verdict.FITS_WITH_CHANGES: "fits-with-changes",
    Verdict.DOES_NOT_FIT: "does-not-fit",
    Verdict.UNKNOWN: "plan-unknown",
}


def _with_passed(report: SmokeReport) -> dict[str, object]:
    return {**msgspec.to_builtins(report), "passed": report.passed}


def _rate(quantity: Quantity) -> str:
    return "unknown" if isinstance(quantity, Unknown) else f"{quantity.number:.0f}"


def _spread(threads: int) -> tuple[int, ...]:
    return (1, max(1, threads // 2), threads)


def _words(config: RunConfig) -> str:
    flash = "on" if config.flash_attention else "off"
    pages = "huge pages" if config.huge_pages else f"loaded by {config.load_mode}"
    return f"{config.threads} threads, flash attention {flash}, {pages}"
