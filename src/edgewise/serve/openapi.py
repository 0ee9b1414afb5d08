"""The OpenAPI 3.1 document, made from the types that decode requests and encode answers."""

from __future__ import annotations

from typing import Any

import msgspec

from edgewise._version import __version__
from edgewise.serve.bodies import ChatBody, CompletionBody
from edgewise.serve.bodies_responses import ResponseBody
from edgewise.serve.consent_bodies import ChoiceBody, ChoiceReply, DecisionList, RevokeReply
from edgewise.serve.problems import ErrorReply
from edgewise.serve.replies import ChatReply, CompletionReply, ModelCard, ModelList
from edgewise.serve.replies_responses import FunctionCallOutput, MessageOutput, ResponseReply

__all__ = ["document"]

_REF = "#/components/schemas/"
_TOKEN_ID = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TOKEN_IDS = {"type": "array", "items": _TOKEN_ID, "minItems": 1}
_OPEN: dict[str, Any] = {"security": []}
_ERRORS = {
    "400": "A parameter is unknown, unsupported, wrong, or contradicts another.",
    "401": "The token is missing or wrong.",
    "403": "The caller may not call, the policy declined the request, or consent is required.",
    "404": "There is no such model, path, question or decision.",
    "405": "The path does not take this method.",
    "408": "The body did not come in time.",
    "409": "Another answer to this question is being recorded.",
    "410": "The question was answered already, or is over.",
    "413": "The body is too long.",
    "415": "The body is not JSON by its type.",
    "429": "The queue is full, or a destination takes no more requests for now.",
    "500": "The engine failed.",
    "502": "A destination failed.",
    "503": "The device's state declined the request, or the engine is unavailable.",
    "504": "The deadline passed.",
}


def document(model: str, *, with_token: bool, with_consent: bool = False) -> dict[str, Any]:
    """Return the document of a server that answers with a model.

    Args:
        model: The model's id.
        with_token: Whether callers need a token.
        with_consent: Whether the server has a policy, and so takes answers to its questions.
    """
    components = {"schemas": _schemas(model, with_consent=with_consent)}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Edgewise",
            "version": __version__,
            "description": "The active deployment of this device, as OpenAI's clients call it.",
        },
        "paths": {**_paths(), **(_consent_paths() if with_consent else {})},
        "components": components,
    }
    if with_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _schemas(model: str, *, with_consent: bool) -> dict[str, Any]:
    types = [
        *(ChatBody, CompletionBody, ResponseBody),
        *(ChatReply, CompletionReply, ResponseReply, MessageOutput, FunctionCallOutput),
        *(ModelCard, ModelList, ErrorReply),
        *((ChoiceBody, ChoiceReply, DecisionList, RevokeReply) if with_consent else ()),
    ]
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    for name in ("ChatBody", "CompletionBody", "ResponseBody"):
        schemas[name]["properties"]["model"] = {
            "type": "string",
            "description": "The model's id, its name, or its fingerprint (12 digits or more).",
            "examples": [model],
        }
    schemas["CompletionBody"]["properties"]["prompt"] = {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            _TOKEN_IDS,
            {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
        ]
    }
    schemas["ResponseReply"]["properties"]["output"] = {
        "type": "array",
        "items": {
            "anyOf": [{"$ref": f"{_REF}MessageOutput"}, {"$ref": f"{_REF}FunctionCallOutput"}]
        },
    }
    # What has a role and no type is a message.
    schemas["MessageItem"]["required"].remove("type")
    items = schemas["ResponseBody"]["properties"]["input"]["anyOf"]
    next(s for s in items if s.get("type") == "array")["items"].pop("discriminator", None)
    return schemas


def _paths() -> dict[str, Any]:
    stream = "Server-sent events, when `stream` is true."
    return {
        "/v1/chat/completions": {
            "post": _operation("chat", "Answer a conversation.", "ChatReply", "ChatBody", stream)
        },
        "/v1/completions": {
            "post": _operation(
                "completions", "Go on from prompts.", "CompletionReply", "CompletionBody", stream
            )
        },
        "/v1/responses": {
            "post": _operation(
                "responses", "Answer a conversation.", "ResponseReply", "ResponseBody", stream
            )
        },
        "/v1/models": {"get": _operation("models", "List the models.", "ModelList")},
        "/v1/models/{model}": {
            "get": {
                **_operation("model", "Describe a model.", "ModelCard"),
                "parameters": [_in_path("model")],
            }
        },
        "/healthz": {"get": {**_plain("health", "Say that the process lives."), **_OPEN}},
        "/readyz": {"get": {**_plain("ready", "Say whether a request is taken up."), **_OPEN}},
        "/openapi.json": {"get": _plain("openapi", "This document.")},
    }


def _consent_paths() -> dict[str, Any]:
    answer = _operation(
        "answer-consent", "Record the user's answer to a question.", "ChoiceReply", "ChoiceBody"
    )
    revoke = _operation("revoke-consent", "Take a decision back.", "RevokeReply")
    return {
        "/edgewise/v1/consent": {
            "get": _operation("list-consents", "List what was decided.", "DecisionList")
        },
        "/edgewise/v1/consent/{id}": {
            "post": {**answer, "parameters": [_in_path("id")]},
            "delete": {**revoke, "parameters": [_in_path("id")]},
        },
    }


def _in_path(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation(
    name: str, summary: str, reply: str, body: str | None = None, streamed: str = ""
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": _REF + reply}}}
    if streamed:
        content["text/event-stream"] = {}  # OpenAPI 3.1 has no schema for events
    found: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": f"The answer. {streamed}".strip(), "content": content},
            **_errors(),
        },
    }
    if body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF + body}}},
        }
    return found


def _plain(name: str, summary: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": {"description": "The answer.", "content": content}, **_errors()},
    }


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"{_REF}ErrorReply"}}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}
