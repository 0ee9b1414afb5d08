"""Checkpoints of a home, fetched from local files, and what their metadata gives."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders import CHATML, TOKENS, tiny_gguf

from edgewise.errors import EdgewiseError, InputError, IntegrityError, UnsupportedError
from edgewise.models.template import BUILTIN_TEMPLATES
from edgewise.store import Home
from edgewise.workflow.checkpoints import (
    Checkpoint,
    describe,
    fetch_checkpoint,
    model_name,
    text_settings,
)
from edgewise.workflow.context import Context, Step


@pytest.fixture
def steps() -> list[Step]:
    return []


@pytest.fixture
def context(tmp_path: Path, steps: list[Step]) -> Context:
    return Context(Home(tmp_path / "home"), report=steps.append)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path / "tiny.gguf")


def fails(call: Any, *arguments: Any) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        call(*arguments)
    return caught.value


def record(context: Context, reference: str) -> Path:
    key = hashlib.sha256(reference.encode()).hexdigest()
    return context.home.root / "checkpoints" / f"{key}.json"


def blobs(context: Context) -> set[str]:
    folder = context.home.root / "blobs"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_local_file(context: Context, tiny: Path, steps: list[Step]) -> None:
    data = tiny.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    checkpoint = fetch_checkpoint(context, f"file:{tiny}")
    assert checkpoint == Checkpoint(
        reference=f"file:{tiny}",
        revision=f"sha256:{digest}",
        sha256=digest,
        size_bytes=len(data),
        pinned=False,
    )
    assert checkpoint.identity.sha256 == digest
    assert context.home.verified_blob(digest).read_bytes() == data
    assert tiny.read_bytes() == data
    stored = msgspec.json.decode(record(context, f"file:{tiny}").read_bytes(), type=Checkpoint)
    assert stored == checkpoint
    assert (steps[0].status, steps[-1].status) == ("start", "done")
    assert "trusted on first use" in steps[-1].message


def test_the_original_is_not_the_blob(context: Context, tiny: Path) -> None:
    checkpoint = fetch_checkpoint(context, str(tiny))
    with tiny.open("r+b") as stream:
        stream.write(b"XXXX")
    context.home.verified_blob(checkpoint.sha256)


def test_a_changed_file_is_fetched_anew(context: Context, tiny: Path) -> None:
    before = fetch_checkpoint(context, str(tiny))
    tiny_gguf(tiny, metadata={"general.name": "Tinz"})  # the same size
    after = fetch_checkpoint(context, str(tiny))
    assert before.size_bytes == after.size_bytes
    assert after.sha256 == hashlib.sha256(tiny.read_bytes()).hexdigest() != before.sha256
    assert blobs(context) == {before.sha256, after.sha256}


def test_an_unchanged_file_twice(context: Context, tiny: Path) -> None:
    assert fetch_checkpoint(context, str(tiny)) == fetch_checkpoint(context, str(tiny))
    assert len(blobs(context)) == 1


def test_fetching_again_mends_a_damaged_blob(context: Context, tiny: Path) -> None:
    checkpoint = fetch_checkpoint(context, str(tiny))
    blob = context.home.blob(checkpoint.sha256)
    size = blob.stat().st_size
    blob.unlink()
    blob.write_bytes(b"x" * size)
    fetch_checkpoint(context, str(tiny))
    context.home.verified_blob(checkpoint.sha256)


def test_a_pinned_file(context: Context, tiny: Path, steps: list[Step]) -> None:
    digest = hashlib.sha256(tiny.read_bytes()).hexdigest()
    checkpoint = fetch_checkpoint(context, f"file:{tiny}#sha256={digest}")
    assert checkpoint.pinned
    assert "digest pinned" in steps[-1].message
    error = fails(fetch_checkpoint, context, f"file:{tiny}#sha256={'0' * 64}")
    assert isinstance(error, IntegrityError)
    assert error.code == "digest-mismatch"
    assert blobs(context) == {digest}


@pytest.mark.parametrize(
    "data", [b"", b"GGUF", b"<html>log in</html>", b"GGUF" + b"\xff" * 5000, b"\0" * 5000]
)
def test_a_hostile_file_gets_no_place(context: Context, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    error = fails(fetch_checkpoint, context, str(path))
    assert isinstance(error, IntegrityError)
    assert blobs(context) == set()
    assert not (context.home.root / "checkpoints").exists()


def test_a_corrected_file_is_taken_after_a_hostile_one(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<html>log in</html>")
    assert isinstance(fails(fetch_checkpoint, context, str(path)), IntegrityError)
    tiny_gguf(path)
    checkpoint = fetch_checkpoint(context, str(path))
    assert checkpoint.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("/no/such/file.gguf", "file-missing"),
        ("no-such-model", "reference-invalid"),
        ("ftp://x/y.gguf", "reference-invalid"),
    ],
)
def test_what_names_nothing(context: Context, reference: str, code: str) -> None:
    error = fails(fetch_checkpoint, context, reference)
    assert isinstance(error, InputError)
    assert error.code == code
    assert error.hint


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"reference":1}', b"[]"])
def test_a_damaged_record(context: Context, tiny: Path, data: bytes) -> None:
    fetch_checkpoint(context, str(tiny))
    path = record(context, f"file:{tiny}")
    path.write_bytes(data)
    error = fails(fetch_checkpoint, context, str(tiny))
    assert isinstance(error, IntegrityError)
    assert error.code == "checkpoint-record-corrupt"
    assert error.context == {"path": str(path)}
    path.unlink()  # as the hint says
    assert fetch_checkpoint(context, str(tiny)).reference == f"file:{tiny}"


def stored(context: Context, tiny: Path, reference: str) -> Checkpoint:
    """Put a checkpoint under a reference that is never asked for again."""
    checkpoint = msgspec.structs.replace(
        fetch_checkpoint(context, str(tiny)), reference=reference, pinned=True
    )
    context.home.write(record(context, reference), msgspec.json.encode(checkpoint))
    return checkpoint


def test_immutable_content_is_served_without_asking(
    context: Context, tiny: Path, steps: list[Step]
) -> None:
    reference = "pypi:tiny==1.0#m.gguf"
    checkpoint = stored(context, tiny, reference)
    assert fetch_checkpoint(context, reference, offline=True) == checkpoint
    assert steps[-1].status == "reused"


def test_a_damaged_blob_is_not_served(context: Context, tiny: Path, steps: list[Step]) -> None:
    checkpoint = stored(context, tiny, "pypi:tiny==1.0#m.gguf")
    blob = context.home.blob(checkpoint.sha256)
    blob.chmod(0o644)
    with blob.open("r+b") as stream:
        stream.write(b"XXXX")
    error = fails(
        functools.partial(fetch_checkpoint, offline=True), context, "pypi:tiny==1.0#m.gguf"
    )
    assert isinstance(error, EdgewiseError)  # it cannot be had again, and is not served either
    assert any(s.status == "note" and "fetched again" in s.message for s in steps)


def _fetch(root: Path, path: str, queue: Any) -> None:
    queue.put(fetch_checkpoint(Context(Home(root)), path).sha256)


@pytest.mark.slow
def test_two_processes_at_once(context: Context, tiny: Path) -> None:
    with tiny.open("ab") as stream:
        stream.write(os.urandom(8 << 20))
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    children = [
        spawn.Process(target=_fetch, args=(context.home.root, str(tiny), queue)) for _ in range(2)
    ]
    for child in children:
        child.start()
    digests = {queue.get(timeout=60) for _ in children}
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert digests == {hashlib.sha256(tiny.read_bytes()).hexdigest()} == blobs(context)
    context.home.verified_blob(digests.pop())
    left = [path for path in context.home.staging.rglob("*") if path.suffix == ".gguf"]
    assert left == []


def test_text_settings(tiny: Path) -> None:
    settings = text_settings(describe(tiny))
    assert settings.template_source == CHATML
    assert settings.template_sha256 == hashlib.sha256(CHATML.encode()).hexdigest()
    assert (settings.bos_token, settings.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert settings.add_bos is False
    assert 2 in settings.end_token_ids
    assert settings.special_tokens == tuple(sorted(TOKENS[:3]))


def test_a_model_without_a_template(tmp_path: Path) -> None:
    description = describe(tiny_gguf(tmp_path / "m.gguf", drop=["tokenizer.chat_template"]))
    error = fails(text_settings, description)
    assert isinstance(error, UnsupportedError)
    assert error.hint
    settings = text_settings(description, template="chatml")
    assert settings.template_name == "builtin:chatml"
    assert settings.template_source == BUILTIN_TEMPLATES["chatml"]


def test_the_models_own_template_is_not_replaced_quietly(tiny: Path) -> None:
    settings = text_settings(describe(tiny), template="chatml")
    assert settings.template_source == CHATML
    assert not settings.template_name.startswith("builtin:")


def test_an_unknown_builtin(tiny: Path) -> None:
    with pytest.raises(InputError) as caught:
        text_settings(describe(tiny), template="none")
    assert caught.value.code == "template-unknown"


def test_a_model_that_never_ends(tmp_path: Path) -> None:
    tokens = ["x", "y", "z", "a", "b", "ab", "\u0120", "\u010a"]
    path = tiny_gguf(
        tmp_path / "m.gguf",
        metadata={"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * 8},
        drop=["tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id"],
    )
    error = fails(text_settings, describe(path))
    assert isinstance(error, IntegrityError)
    assert error.code == "end-token-missing"


@pytest.mark.parametrize(
    ("keys", "drop", "adds"),
    [
        ({"tokenizer.ggml.add_bos_token": True}, [], True),
        ({}, ["tokenizer.ggml.add_bos_token"], False),
    ],
)
def test_whether_bos_is_added(tmp_path: Path, keys: Any, drop: Any, adds: bool) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", metadata=keys, drop=drop)
    assert text_settings(describe(path)).add_bos is adds


def test_a_shape_without_rules_is_said_not_raised(tmp_path: Path) -> None:
    description = describe(tiny_gguf(tmp_path / "m.gguf", architecture="mamba"))
    assert description.shape is None
    assert "mamba" in description.shape_missing
    known = describe(tiny_gguf(tmp_path / "k.gguf"))
    assert known.shape is not None
    assert known.shape_missing == ""


def test_display_names() -> None:
    assert model_name("/x/y.gguf") == "/x/y.gguf"
    assert model_name(None) == model_name("smollm2-135m-instruct") != "smollm2-135m-instruct"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        ("{{ 10**10**10 }}", "template-loses-message"),
        ("hello", "template-loses-message"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "template-loses-message"),
        ("{% for", "template-invalid"),
        ("{% for i in range(10**9) %}{% endfor %}", None),
    ],
)
def test_a_template_that_cannot_carry_a_message_is_refused(
    tmp_path: Path, template: str, code: str | None
) -> None:
    path = tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
    error = fails(text_settings, describe(path))
    assert isinstance(error, IntegrityError)
    assert code is None or error.code == code
