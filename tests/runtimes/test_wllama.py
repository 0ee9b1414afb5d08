"""wllama in a real browser: the engine contract, parity with llama.cpp, and the page for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.runtimes.test_browser import scenario

from edgewise.core.recipe import RunConfig
from edgewise.qualify.texts import AFTER_CONTROL, HARD_TEXTS
from edgewise.run.service import capabilities_in_worker
from edgewise.runtimes.browser.chromium import find_browser
from edgewise.runtimes.launch import look_for
from edgewise.runtimes.llamacpp.engine import LlamaCppEngine
from edgewise.runtimes.wllama import adapter
from edgewise.testing import run_contract

LAYERS = 2

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.model,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium-class browser"),
]


@pytest.fixture(autouse=True)
def _installed() -> None:
    if look_for(adapter).absent:
        pytest.skip("not installed: edgewise runtime install wllama")


@pytest.fixture(scope="module")
def two_layers(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two layers of SmolLM2, with its embedding, head and tokenizer."""
    path = tmp_path_factory.mktemp("two") / "model.gguf"
    reader = gguf.GGUFReader(smollm2_path)
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = LAYERS if key == "llama.block_count" else field.contents()
        inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        if parts[0] != "blk" or int(parts[1]) < LAYERS:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def native(two_layers: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(two_layers, RunConfig(context_length=128, threads=1))
    yield engine
    engine.close()


def test_it_can_run_here() -> None:
    found = capabilities_in_worker("wllama")
    assert found.can_run, found.reason
    assert found.logits
    assert found.rewind
    assert not found.state_save
    assert "WebAssembly" in found.backends[0]


def test_the_contract(two_layers: Path) -> None:
    report = run_contract("wllama", two_layers, end_token_ids=[2])
    assert report.passed, report.failures


@pytest.mark.parametrize("threads", [1, 2])
def test_it_agrees_with_llama_cpp(
    two_layers: Path, native: LlamaCppEngine, tmp_path: Path, threads: int
) -> None:
    texts = ["", *HARD_TEXTS, *(f"<|im_start|>{text}<|im_end|>" for text in AFTER_CONTROL)]
    text = "The lighthouse keeper wrote down the weather every morning: naïve café 😀 42."
    tokens = native.tokenize(text, add_special=False, parse_special=False)
    asked = {"texts": texts, "tokens": tokens, "threads": threads}
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    found = scenario("wllama_logits", tmp_path, str(two_layers))
    for wanted, ids, parsed in zip(texts, found["ids"], found["parsed"], strict=True):
        assert ids == native.tokenize(wanted, add_special=False, parse_special=False), wanted
        assert parsed == native.tokenize(wanted, add_special=True, parse_special=True), wanted
    spelled = [bytes(piece) for piece in found["bytes"]]
    assert spelled == [native.token_bytes(token) for token in range(native.vocab_size)]

    theirs = np.load(tmp_path / "logits.npy").astype(np.float64)
    rows = [native.prefill(tokens[:4]).copy()]
    rows += [native.decode(token).copy() for token in tokens[4:]]
    ours = np.stack(rows).astype(np.float64)
    ours -= np.log(np.exp(ours - ours.max(1, keepdims=True)).sum(1, keepdims=True))
    ours -= ours.max(1, keepdims=True)
    theirs -= theirs.max(1, keepdims=True)
    p = np.exp(ours) / np.exp(ours).sum(1, keepdims=True)
    q = np.exp(theirs) / np.exp(theirs).sum(1, keepdims=True)
    kl = (p * (np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300)))).sum(1)
    assert kl.mean() < 5e-3
    assert (ours.argmax(1) == theirs.argmax(1)).mean() >= 0.9
    assert f"threads={threads}" in found["features"]
    assert list(found["operators"]["graph nodes"]) == ["CPU"]
    assert found["weights"] > 30e6
    assert found["resident"] > found["weights"]


@pytest.mark.slow
def test_the_page_answers_a_person(smollm2_path: Path, tmp_path: Path) -> None:
    found = scenario("wllama_page", tmp_path, str(smollm2_path))
    assert found["loaded"] == "ready"
    assert "The capital of France is Paris." in found["text"]
    assert "tok/s" in found["text"]
    assert "CPU (WebAssembly)" in found["facts"]
    assert found["result"]["text"] == "".join(found["pieces"])
    assert found["result"]["text"].startswith("The capital of France is Paris.")
    assert len(found["pieces"]) >= 7
    assert found["result"]["finish"] == "stop"
    assert found["result"]["decode_tok_s"] > 0
    assert found["result"]["prompt_tokens"] > 10
    assert found["info"]["cross_origin_isolated"] is True
    assert found["info"]["threads"] == 1
    assert found["info"]["limits"]["array_buffer_bytes"] == 2**31 - 1
    assert found["refused"] == []
    assert {status for _, status in found["served"]} == {200}
    assert (tmp_path / "page.png").stat().st_size > 10_000
