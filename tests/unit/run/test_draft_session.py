"""A deployment with a draft model, set up and asked the way a user does it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMOLLM2, seeded_home

from edgewise.core.outcome import Completed
from edgewise.core.recipe import LoadMode, Recipe
from edgewise.core.request import ContextPolicy, Message, Request
from edgewise.core.structure import Structure, StructureKind
from edgewise.errors import InputError, IntegrityError
from edgewise.models.hf_form import gguf_to_hf
from edgewise.run.messages import PrefixSettings
from edgewise.run.session import Session
from edgewise.store import Home
from edgewise.workflow.context import Context
from edgewise.workflow.opening import open_session
from edgewise.workflow.parity import drafts_left_out
from edgewise.workflow.up import bring_up
from edgewise.workflow.up_report import UpReport, UpRequest

pytestmark = [pytest.mark.model, pytest.mark.slow]

Q4_0 = Recipe(name="q4_0", weights="q4_0")
REPACKED_BYTES = 30 * (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) // 32 * 18
SMALL: dict[str, Any] = {"offline": True, "context_length": 512}


@pytest.fixture(scope="session")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, UpReport]:
    """A home whose active deployment has its own model in a smaller format as a draft."""
    root = seeded_home(tmp_path_factory.mktemp("drafted") / "home")
    request = UpRequest(draft=SMOLLM2, draft_recipe=Q4_0, **SMALL)
    return root, bring_up(Context(Home(root)), request)


@pytest.fixture
def home(drafted: tuple[Path, UpReport], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(drafted[0], tmp_path / "copy", copy_function=shutil.copy2))


def ask(session: Session, text: str, **fields: Any) -> Completed:
    request = Request(messages=(Message(role="user", content=text),), **fields)
    outcome = session.ask(request)
    assert isinstance(outcome, Completed), outcome
    return outcome


def test_it_is_planned_measured_and_part_of_the_deployment(
    drafted: tuple[Path, UpReport],
) -> None:
    root, report = drafted
    assert report.status == "ready", report.reasons
    assert report.plan is not None
    assert report.smoke is not None
    assert report.draft_receipt is not None
    planned, held = report.plan.memory.draft, report.smoke.memory.draft
    assert planned is not None
    assert held is not None
    assert held.kv_cache_bytes.number == planned.kv_cache_bytes.number
    # What is mapped and repacked is there twice, and llama.cpp reports it once.
    assert report.tuning is not None
    mapped = report.tuning.chosen.load_mode is LoadMode.MMAP
    weights = held.weights_bytes.number + (REPACKED_BYTES if mapped else 0)
    assert planned.weights_bytes.number == pytest.approx(weights, rel=0.02)
    bundle = Context(Home(root)).bundles.active()
    assert bundle.deployment.draft is not None
    assert bundle.deployment.draft.artifact.sha256 == report.draft_receipt.sha256
    assert "draft model from" in bundle.notice
    assert report.evidence["draft-build"] != report.evidence["build"]
    checked = {check.name: check for check in report.smoke.checks}
    assert 0.4 < checked["draft-agrees"].figure.number <= 1  # Q4_0 of a Q4_1 model
    assert checked["draft-changes-nothing"].passed
    assert report.receipt is not None
    (said,) = drafts_left_out(Context(Home(root)), report.receipt)
    assert bundle.fingerprint[:12] in said
    assert drafts_left_out(Context(Home(root)), report.draft_receipt) == []


def test_answers_are_those_without_it_and_it_is_counted(drafted: tuple[Path, UpReport]) -> None:
    texts = ("Tell me a story.", "Name three colours.", "Count from 1 to 20.")
    with open_session(Context(Home(drafted[0]))) as session:
        for text in texts:
            ask(session, text, max_tokens=1)
            guessed = ask(session, text, max_tokens=64)
            plain = ask(session, text, max_tokens=64, speculate=False)
            assert guessed.text == plain.text
            assert plain.speculation is None
            assert guessed.speculation is not None
            source = guessed.speculation.sources[-1]
            assert source.source == "draft"
            assert bool(source.off) != bool(source.guessed)


def test_structure_policies_states_and_release_go_with_it(
    drafted: tuple[Path, UpReport],
) -> None:
    digits = Structure(kind=StructureKind.REGEX, source=r"[0-9]( [0-9]){11}")
    long = tuple(
        Message(role="user" if n % 2 == 0 else "assistant", content=f"{n} " + "word " * 60)
        for n in range(11)
    )
    states = PrefixSettings(memory_bytes=64 << 20)
    with open_session(Context(Home(drafted[0])), prefixes=states) as session:
        for speculate in (True, False):
            for _ in range(2):
                ask(session, "Tell me of ferries." + " Please." * 40, speculate=speculate)
                found = ask(session, "Count.", structure=digits, max_tokens=40, speculate=speculate)
                assert len(found.text.split()) == 12
            cut = session.ask(
                Request(
                    messages=long,
                    max_tokens=24,
                    context_policy=ContextPolicy.TRUNCATE_OLDEST_TURNS,
                    speculate=speculate,
                )
            )
            assert isinstance(cut, Completed)
            assert any("truncat" in event.code or "left" in event.message for event in cut.events)
        session.release()
        assert ask(session, "Hello", max_tokens=4).text


def test_a_deadline_ends_an_answer_with_it(drafted: tuple[Path, UpReport]) -> None:
    with open_session(Context(Home(drafted[0]))) as session:
        session.warm()
        found = ask(session, "Tell me a very long story.", max_tokens=400, deadline_s=0.4)
        assert found.finish in {"deadline", "stop", "length"}
        assert ask(session, "Hello", max_tokens=4).text


@pytest.mark.parametrize("how", ["flip", "gone"])
def test_a_damaged_draft_is_refused_before_it_is_read(home: Path, how: str) -> None:
    (path,) = (home / "bundles").glob("*/draft.gguf")
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with open_session(Context(Home(home))) as session, pytest.raises(IntegrityError) as caught:
        session.ask(Request(messages=(Message(role="user", content="Hi"),)))
    assert caught.value.code == ("artifact-missing" if how == "gone" else "artifact-corrupt")
    assert "draft" in caught.value.message


@pytest.mark.parametrize("draft_recipe", ["as-is", "q8_0"])
def test_a_draft_that_is_no_smaller_is_refused(home: Path, draft_recipe: str) -> None:
    before = Context(Home(home)).bundles.active().fingerprint
    name = "as-shipped" if draft_recipe == "as-is" else draft_recipe
    request = UpRequest(
        draft=SMOLLM2, draft_recipe=Recipe(name=name, weights=draft_recipe), **SMALL
    )
    with pytest.raises(InputError, match="draft-too-large"):
        bring_up(Context(Home(home)), request)
    assert Context(Home(home)).bundles.active().fingerprint == before


def test_two_layers_of_a_model_are_a_draft(home: Path, smollm2_path: Path, tmp_path: Path) -> None:
    before = Context(Home(home)).bundles.active()
    (tmp_path / "hf").mkdir()
    gguf_to_hf(smollm2_path, tmp_path / "hf", layers=2)
    request = UpRequest(draft=str(tmp_path / "hf"), draft_recipe=Q4_0, **SMALL)
    report = bring_up(Context(Home(home)), request)
    assert report.status == "ready", report.reasons
    assert report.fingerprint != before.fingerprint
    with open_session(Context(Home(home))) as session:
        assert ask(session, "Hello", max_tokens=16).text
