"""Scopes: each is one thing, named in full."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.route.consent.consents import SCOPE

from edgewise.errors import InputError
from edgewise.route.consent import ConsentScope, ConsentState, ConsentVerdict


@pytest.mark.parametrize("field", ["feature", "data_class", "destination", "purpose"])
@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", " a", "a ", "*", "acme*", "\udcff", "x" * 1001, 3, None, b"acme"],
    ids=ascii,
)
def test_what_names_nothing_or_more_than_one_thing_is_refused(field: str, text: object) -> None:
    with pytest.raises(InputError) as caught:
        msgspec.structs.replace(SCOPE, **{field: text})
    assert caught.value.code == "consent-scope-invalid"
    assert caught.value.context == {"field": field}


def test_a_scope_goes_through_json() -> None:
    scope = msgspec.structs.replace(SCOPE, purpose="Brief übersetzen: 手紙 \u202e")
    assert msgspec.json.decode(msgspec.json.encode(scope), type=ConsentScope) == scope


def test_a_granted_state_names_its_grant() -> None:
    with pytest.raises(InputError) as caught:
        ConsentState(scope=SCOPE, verdict=ConsentVerdict.GRANTED, reason="so they say")
    assert caught.value.code == "consent-state-invalid"
