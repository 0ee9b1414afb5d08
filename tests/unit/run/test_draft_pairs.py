"""Draft models made from real weights: two layers of the model, and the model in a smaller format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.conftest import QUICK
from tests.unit.run.test_drafting import costs

from edgewise.core.outcome import GuessSource
from edgewise.core.recipe import Recipe, RunConfig
from edgewise.core.request import Sampling
from edgewise.errors import EdgewiseError
from edgewise.models.hf_form import gguf_to_hf, hf_to_gguf
from edgewise.run.answer import Answer
from edgewise.run.decoding import Decoder
from edgewise.run.draft_model import DraftModel
from edgewise.run.guesser import Guesser
from edgewise.run.messages import Chunk, GenerateParams, LoadParams, Notice
from edgewise.run.service import EngineService
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.runtimes.llamacpp.exporter import GgufExporter

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = (
    "<|im_start|>user\nTell me a story about a ferry.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 12 * 7? Think step by step.<|im_end|>\n<|im_start|>assistant\n",
    "The capital of France is",
    "def fibonacci(n):\n",
    "Write the numbers from one to ten, then back again: one, two, three,",
)
LIMIT = 48


@pytest.fixture(scope="session")
def two_layers(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-layers")
    (folder / "hf").mkdir()
    gguf_to_hf(smollm2_path, folder / "hf", layers=2)
    hf_to_gguf(folder / "hf", folder / "draft.gguf", dtype="f16")
    return folder / "draft.gguf"


@pytest.fixture(scope="session")
def smaller_format(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smaller")
    GgufExporter().export(smollm2_path, folder, Recipe(name="q4_0", weights="q4_0"), threads=1)
    return folder / "model.gguf"


@pytest.fixture(scope="session", params=["two_layers", "smaller_format"])
def draft(request: pytest.FixtureRequest) -> Iterator[tuple[str, DraftModel]]:
    engine = LlamaCppEngine(request.getfixturevalue(request.param), QUICK)
    yield request.param, DraftModel(engine=engine, size_ratio=0.1)
    engine.close()


def answered(
    engine: LlamaCppEngine, prompt: str, draft: DraftModel | None
) -> tuple[str, GuessSource | None]:
    """Answer greedily, with a draft whose steps count as free, and the model's passes nearly so."""
    pieces: list[str] = []

    def emit(notice: Notice) -> None:
        assert isinstance(notice, Chunk)
        pieces.append(notice.text)

    engine.rewind(0)
    ids = engine.tokenize(prompt, add_special=True, parse_special=True)
    params = GenerateParams(max_tokens=LIMIT, sampling=Sampling(), stop=(), deadline_s=None)
    answer, fixed, end = Answer(params, LIMIT, emit), costs(), {2}
    guesser = None if draft is None else Guesser(ids, fixed, draft, end)
    logits = engine.prefill(ids)
    Decoder(engine, end, answer, list(ids), guesser=guesser, costs=fixed).run(logits)
    answer.close()
    if answer.speculation is None:
        return "".join(pieces), None
    return "".join(pieces), answer.speculation.sources[-1]


def test_no_answer_changes(engine: LlamaCppEngine, draft: tuple[str, DraftModel]) -> None:
    name, model = draft
    guessed = accepted = 0
    for prompt in PROMPTS:
        model.balance = 12.0
        plain, _ = answered(engine, prompt, None)
        drafted, found = answered(engine, prompt, model)
        assert drafted == plain
        assert found is not None
        assert found.source == "draft"
        guessed += found.guessed
        accepted += found.accepted
        assert len(model.held) == model.engine.position
    assert guessed > 0
    if name == "smaller_format":
        assert accepted / guessed > 0.5


def test_its_context_follows_a_real_engine(draft: tuple[str, DraftModel]) -> None:
    """After any rewind its logits are those of a context that never held anything else."""
    _, model = draft
    ids = model.engine.tokenize(PROMPTS[0] * 3, add_special=True, parse_special=True)
    model.follow(ids[:40])
    for token in ids[40:44]:
        model.evaluate([token])
    model.follow([*ids[:30], 7, 8, 9])
    followed = model.follow(ids[:20]).copy()
    model.engine.rewind(0)
    model.engine.prefill(ids[:19])
    clean = model.engine.decode(ids[19])
    model.held[:] = ids[:20]
    assert np.abs(followed - clean).max() < 0.5
    assert followed.argmax() == clean.argmax()


def load(main: Path, draft: Path, config: RunConfig = QUICK) -> EngineService:
    service = EngineService()
    params = LoadParams(runtime="llamacpp", artifact=str(main), run_config=config, draft=str(draft))
    service.methods()["load"].run(params, lambda _notice: None)
    return service


def test_a_worker_reports_both(smollm2_path: Path, two_layers: Path) -> None:
    service = load(smollm2_path, two_layers)
    report = service.methods()["memory"].run(None, lambda _notice: None)
    assert report.draft is not None
    small, large = report.draft.kv_cache_bytes, report.kv_cache_bytes
    assert small.number * 15 == large.number  # 2 and 30 layers
    assert service.draft is not None
    service.draft.close()
    service.engine.close()


def test_what_cannot_be_loaded_beside_it(
    smollm2_path: Path, gemma_path: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2_path.read_bytes()[: 1 << 20])
    long = msgspec.structs.replace(QUICK, context_length=1024)  # Gemma's window has 512
    several = msgspec.structs.replace(QUICK, parallel=2)
    kinds: list[tuple[Path, Path, RunConfig, str]] = [
        (smollm2_path, tmp_path / "gone.gguf", QUICK, "artifact-missing"),
        (smollm2_path, cut, QUICK, "model-load-failed"),
        (smollm2_path, gemma_path, QUICK, "draft-vocabulary"),
        (smollm2_path, gemma_path, long, "draft-unsupported"),
        (gemma_path, smollm2_path, long, "draft-unsupported"),
        (smollm2_path, smollm2_path, several, "draft-unsupported"),
    ]
    for main, draft, config, code in kinds:
        with pytest.raises(EdgewiseError) as caught:
            load(main, draft, config)
        assert caught.value.code == code
