"""The OpenAPI document: valid, complete, and the same as what the server takes and gives."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from tests.unit.serve.fakes import MODEL, FakeSession, serving

from edgewise.serve.bodies import ChatBody, CompletionBody
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.openapi import document

DOCUMENT = document(MODEL, with_token=True, with_consent=True)
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": MODEL, "prompt": "hi", "echo": True, "logprobs": 1},
    "responses": {"model": MODEL, "input": [{"role": "user", "content": "hi"}]},
}


def schema(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(v) for v in value.values()))
    return set().union(*(references(v) for v in value)) if isinstance(value, list) else set()


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for reference in references(DOCUMENT):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for found in schemas.values():
        jsonschema.Draft202012Validator.check_schema(found)


def test_every_parameter_is_in_the_document_and_no_other_is_allowed() -> None:
    for kind in (ChatBody, CompletionBody, ResponseBody):
        found = DOCUMENT["components"]["schemas"][kind.__name__]
        assert set(found["properties"]) == set(kind.__struct_fields__)
        assert found["additionalProperties"] is False


@pytest.mark.parametrize("path", BODIES)
def test_bodies_and_answers_are_valid_by_the_document(path: str) -> None:
    operation = DOCUMENT["paths"][f"/v1/{path}"]["post"]
    asked = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    given = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    jsonschema.validate(BODIES[path], schema(asked.rpartition("/")[2]))
    with serving(FakeSession()) as served:
        reply = httpx.post(f"{served.url}/v1/{path}", json=BODIES[path]).json()
        error = httpx.post(f"{served.url}/v1/{path}", json={"model": MODEL, "n": 7}).json()
    jsonschema.validate(reply, schema(given.rpartition("/")[2]))
    jsonschema.validate(error, schema("ErrorReply"))


def test_the_token_is_in_the_document_only_where_there_is_one() -> None:
    assert DOCUMENT["security"] == [{"token": []}]
    assert "security" not in document(MODEL, with_token=False)


def test_the_server_serves_the_document() -> None:
    with serving(FakeSession()) as served:
        reply = httpx.get(f"{served.url}/openapi.json")
        written = msgspec.json.encode(document(MODEL, with_token=False))
        assert reply.json() == msgspec.json.decode(written)
        listed = {path for path in reply.json()["paths"] if "{" not in path}
        for path in listed:
            assert httpx.get(served.url + path).status_code in {200, 405}
