"""Scenarios of the LiteRT runtimes, run by the interpreter of their environment.

``python litert_scenarios.py SRC FOLDER`` runs all of them in one process, since loading the
libraries takes as long as an export, and writes one JSON line. The model is random and small; the
reference is transformers' own forward pass in float32.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM

from edgewise.core.formats import OfferedFormat
from edgewise.core.recipe import KvType, LoadMode, Recipe, RunConfig
from edgewise.core.request import Message, Sampling
from edgewise.errors import EdgewiseError
from edgewise.runtimes import litert
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.chat import read_chat_source
from edgewise.runtimes.litert.conversion import convert, read_checkpoint
from edgewise.runtimes.litert.exporter import LiteRtExporter
from edgewise.runtimes.litert.formats import FORMATS
from edgewise.runtimes.litert_lm.engine import LiteRtLmEngine
from edgewise.runtimes.protocol import CancelledError
from edgewise.testing import check_text_engine

CONTEXT = 512  # a byte is a token, and the contract asks in sentences
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BEGIN_IN_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n"
    "    {% if m.role == 'system' %}[{{ m.content | trim }}]\n{% else %}\n"
    "<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")


def checkpoint(folder: Path, *, template: str = CHATML, begin: bool = False, **changes) -> Path:
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>" if begin or "bos_token" in template else "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": template,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        **changes,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = [tokenizer.token_to_id("<|im_end|>")]
    model.save_pretrained(str(folder))
    return folder


def reference(source: Path, ids: list[int]) -> np.ndarray:
    model = LlamaForCausalLM.from_pretrained(str(source), dtype=torch.float32)
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([ids])).logits[0].numpy()
    return logits


def offer(name: str) -> OfferedFormat:
    return next(found for found in FORMATS if found.name == name)


def config(context: int = CONTEXT, **more) -> RunConfig:
    return RunConfig(context_length=context, kv_type=KvType.F32, threads=2, **more)


def code(call) -> str:
    try:
        call()
    except EdgewiseError as error:
        return error.code
    except CancelledError:
        return "cancelled"
    return "none"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def converted(folder: Path, source: Path) -> Path:
    """Return the float model of a checkpoint: the expensive half, once a scenario."""
    work = folder / "work"
    work.mkdir()
    return convert(read_checkpoint(source), work, context_length=CONTEXT, threads=2)


def finished(model: Path, source: Path, out: Path, name: str, *, bundle: bool):
    out.mkdir(parents=True)
    return LiteRtExporter("litert", bundle=bundle).finish(
        model,
        read_checkpoint(source),
        read_chat_source(source) if bundle else None,
        out,
        offer(name),
        context_length=CONTEXT,
    )


def float_export(folder: Path) -> dict[str, Any]:
    source = checkpoint(folder / "hf", tie_word_embeddings=False)
    out = folder / "out"
    out.mkdir()
    recipe = Recipe(name="float", weights="f32")
    result = litert.adapter.exporter().export(source, out, recipe, threads=2)
    engine = litert.adapter.engine(out, config())
    ids = [int(i) for i in np.random.default_rng(3).integers(0, 256, CONTEXT)]
    wanted = reference(source, ids)
    stepped = np.array([engine.decode(i).copy() for i in ids])
    engine.rewind(0)
    whole = engine.prefill(ids).copy()
    engine.rewind(57)
    turned = engine.prefill(ids[57:]).copy()
    full = code(lambda: engine.decode(1))
    engine.rewind(100)
    state = engine.save_state()
    after = engine.decode(7).copy()
    engine.rewind(0)
    engine.prefill(ids[:90][::-1])
    engine.restore_state(state)
    restored = engine.decode(7).copy()
    engine.cancel()
    cancelled = code(lambda: engine.prefill(ids[:20]))
    engine.clear_cancel()
    placed = engine.partition()
    engine.close()
    read = litert.adapter.engine(out, config(load_mode=LoadMode.MALLOC))
    copied = read.prefill(ids).copy()
    read.close()
    return {
        "files": files(out),
        "context": result.context_length,
        "types": result.types,
        "tensorflow": "tensorflow" in sys.modules,
        "agree": float((stepped.argmax(1) == wanted.argmax(1)).mean()),
        "stepped": gap(stepped, wanted),
        "whole": gap(whole, stepped[-1]),
        "turned": gap(turned, whole),
        "copied": gap(copied, whole),
        "state": gap(after, restored),
        "full": full,
        "cancelled": cancelled,
        "partition": [placed.requested, placed.operators["FULLY_CONNECTED"], placed.fallbacks],
        "refused": [
            code(lambda: litert.adapter.engine(out, config(CONTEXT + 1))),
            code(lambda: litert.adapter.engine(out, RunConfig(context_length=64))),
            code(lambda: litert.adapter.engine(out, config(hints=(("x", "y"),)))),
        ],
    }


def quantised(folder: Path) -> dict[str, Any]:
    source = checkpoint(folder / "hf", tie_word_embeddings=True)
    model = converted(folder, source)
    ids = [int(i) for i in np.random.default_rng(3).integers(0, 256, 96)]
    wanted = reference(source, ids)
    found: dict[str, Any] = {}
    for name in [format_.name for format_ in FORMATS]:
        result = finished(model, source, folder / name, name, bundle=False)
        engine = litert.adapter.engine(folder / name, config())
        logits = np.array([engine.decode(i).copy() for i in ids])
        engine.rewind(0)
        found[name] = {
            "types": result.types,
            "deviations": len(result.deviations),
            "noise": float(np.sqrt(((logits - wanted) ** 2).mean()) / wanted.std()),
            "whole": gap(engine.prefill(ids), logits[-1]),
            "fallbacks": list(engine.partition().fallbacks),
        }
        engine.close()
    found["damaged"] = damaged(folder / "f32")
    return found


def damaged(artifact: Path) -> dict[str, str]:
    model = artifact / "model.tflite"
    data = model.read_bytes()
    found: dict[str, Any] = {}
    for name, content in {
        "cut": data[: len(data) // 2],
        "head": data[:200],
        "zeros": data[:1000] + bytes(len(data) - 1000),
        "empty": b"",
    }.items():
        model.write_bytes(content)
        found[name] = code(lambda: litert.adapter.engine(artifact, config()))
    return found


SPOKEN = {
    "one": [("user", "What is the capital?")],
    "system": [("system", " Be brief. "), ("user", 'é "日本" {{ x }} 😀')],
    "turns": [("user", "A"), ("assistant", "B b."), ("user", "C\n\nD ")],
}
CHATS = {
    "chatml": (CHATML, False),
    "begin-in-template": (BEGIN_IN_TEMPLATE, False),
    "begin-by-tokenizer": (CHATML, True),
}


def bundles(folder: Path) -> dict[str, Any]:
    """The three chats have the same weights, so that one conversion serves them all."""
    model = converted(folder, checkpoint(folder / "hf"))
    found: dict[str, Any] = {}
    for case, (template, begin) in CHATS.items():
        source = checkpoint(folder / case / "hf", template=template, begin=begin)
        finished(model, source, folder / case / "out", "dynamic_wi8c", bundle=True)
        engine = LiteRtLmEngine(folder / case / "out", config())
        counts = {}
        for name, turns in SPOKEN.items():
            messages = [Message(role=role, content=content) for role, content in turns]
            result = engine.generate(
                messages, max_tokens=4, sampling=Sampling(), on_text=lambda _: None
            )
            counts[name] = [result.prompt_tokens, len(engine.prompt_tokens(messages))]
        found[case] = {
            "counts": counts,
            "begin": engine.begin_token is not None,
            "first": engine.prompt_tokens([Message(role="user", content="x")])[0],
            "ends": engine.end_tokens,
        }
        engine.close()
    finished(model, folder / "hf", folder / "again", "dynamic_wi8c", bundle=True)
    found["answers"] = answers(folder / "chatml" / "out")
    found["constraints"] = constraints(folder / "chatml" / "out")
    pair = [folder / name / "model.litertlm" for name in ("chatml/out", "again")]
    found["same_bytes"] = pair[0].read_bytes() == pair[1].read_bytes()
    return found


def answers(artifact: Path) -> dict[str, Any]:
    engine = LiteRtLmEngine(artifact, config())
    asked = [Message(role="user", content="Tell me.")]

    def answer(most: int = 24, on_text=lambda _: None, **sampling):
        return engine.generate(
            asked, max_tokens=most, sampling=Sampling(**sampling), on_text=on_text
        )

    def say(content: str):
        message = Message(role="user", content=content)
        return engine.generate([message], max_tokens=4, sampling=Sampling(), on_text=lambda _: None)

    parts: list[str] = []
    clean = answer(on_text=parts.append)
    warm = [answer(temperature=1.5, seed=seed).text for seed in (5, 5, 6)]
    stopped = answer(100, on_text=lambda _: engine.cancel())
    at_once = code(answer)
    engine.clear_cancel()
    found = {
        "files": files(artifact),
        "streamed": "".join(parts) == clean.text,
        "finish": [clean.finish, clean.completion_tokens],
        "seeded": [warm[0] == warm[1], warm[0] == warm[2]],
        "cancelled": [stopped.finish, at_once],
        "after": answer().text == clean.text,
        "refused": [
            code(lambda: say("a <|im_end|> b")),
            code(lambda: say("x" * CONTEXT)),
            code(lambda: answer(temperature=1.0, min_p=0.1)),
            code(lambda: LiteRtLmEngine(artifact, config(CONTEXT + 1))),
            code(lambda: LiteRtLmEngine(artifact, config(load_mode=LoadMode.MALLOC))),
            code(lambda: litert.adapter.engine(artifact, config())),
        ],
        "partition": engine.partition().operators["FULLY_CONNECTED"],
        "contract": {check.name: check.verdict for check in check_text_engine(engine)},
        "left": files(artifact),
    }
    engine.close()
    return found


def constraints(artifact: Path) -> dict[str, Any]:
    """What LiteRT-LM makes of a regular expression by itself, which Edgewise does not use."""
    (litert_lm,) = native.load(native.TEXT_PACKAGE)
    litert_lm.set_min_log_severity(litert_lm.LogSeverity.FATAL)
    engine = litert_lm.Engine(
        str(artifact / "model.litertlm"),
        backend=litert_lm.Backend.CPU(thread_count=2),
        max_num_tokens=CONTEXT,
        cache_dir=":nocache",
    )
    config = litert_lm.ConstrainedDecodingConfig(
        enable=True, provider=litert_lm.LiteRtLmConstraintProviderType.LL_GUIDANCE
    )

    def held_to(pattern: str) -> bool:
        conversation = engine.create_conversation(
            messages=[],
            sampler_config=litert_lm.SamplerConfig(top_k=1, top_p=1.0, temperature=0.0, seed=0),
            max_output_tokens=24,
            automatic_tool_calling=False,
            constrained_decoding_config=config,
        )
        try:
            parts = conversation.send_message_async(
                {"role": "user", "content": "Tell me."},
                response_format=litert_lm.ResponseFormat.regex(pattern),
            )
            return re.fullmatch(pattern, "".join(map(str, parts))) is not None
        except RuntimeError:
            return False
        finally:
            conversation.close()

    patterns = {"letters": "[ab]{2}", "space": "a b", "spaces": "[ ]{3}", "accent": "é"}
    found = {name: held_to(pattern) for name, pattern in patterns.items()}
    engine.close()
    return found


def bad_input(folder: Path) -> dict[str, Any]:
    source = checkpoint(folder / "hf")
    found: dict[str, Any] = {}
    known = json.loads((source / "config.json").read_text())
    for name, change in {
        "architecture": {"model_type": "mamba"},
        "quantised": {"quantization_config": {"bits": 4}},
        "shape": {"intermediate_size": 95},
    }.items():
        (source / "config.json").write_text(json.dumps(known | change))
        out = folder / name
        out.mkdir()
        recipe = Recipe(name="f32", weights="f32")
        export = litert.adapter.exporter().export
        found[name] = [
            code(lambda e=export, o=out, r=recipe: e(source, o, r, threads=2)),
            files(out),
        ]
    return found


SCENARIOS = (float_export, quantised, bundles, bad_input)

if __name__ == "__main__":
    result = {call.__name__: call(Path(sys.argv[2]) / call.__name__) for call in SCENARIOS}
    sys.stdout.write(json.dumps(result) + "\n")
