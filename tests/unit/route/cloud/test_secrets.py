"""Keys: where they are read, and that they are shown nowhere."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import keyring
import keyring.backend
import keyring.errors
import pytest
from tests.unit.route.cloud.servers import GOOD, KEY, Desk, RawServer, at, stream

from edgewise.errors import EdgewiseError
from edgewise.route.cloud import CloudFault, Secret, Secrets
from edgewise.route.cloud.secrets import secret_variable


class Ring(keyring.backend.KeyringBackend):
    priority = 1.0

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found
        self.asked: list[tuple[str, str]] = []

    def get_password(self, service: str, username: str) -> str | None:
        self.asked.append((service, username))
        if isinstance(self.found, Exception):
            raise self.found
        return None if self.found is None else str(self.found)

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError

    def delete_password(self, service: str, username: str) -> None:
        raise NotImplementedError


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    made = Ring(KEY)
    monkeypatch.setattr("keyring.core._keyring_backend", made)
    return made


def test_the_environment_comes_before_the_keyring(ring: Ring) -> None:
    env = {"EDGEWISE_SECRET_MY_KEY_2": "from-env"}
    assert Secrets(env=env).get("my-key.2").reveal() == "from-env"
    assert ring.asked == []


def test_the_keyring_is_asked_where_the_environment_has_none(ring: Ring) -> None:
    assert Secrets(env={}).get("far-key").reveal() == KEY
    assert ring.asked == [("edgewise", "far-key")]


@pytest.mark.parametrize("value", ["", " ", "a b", "a\r\nX-Other: b", "é", "x" * 5000])
def test_a_value_that_no_header_carries_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(EdgewiseError) as caught:
        Secrets(env={secret_variable("k"): value}).get("k")
    assert caught.value.code == "secret-invalid"
    assert not value.strip() or value not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (None, "secret-missing"),
        (keyring.errors.NoKeyringError(), "keyring-unavailable"),
        (keyring.errors.KeyringLocked(KEY), "keyring-unavailable"),
        (OSError(KEY), "keyring-unavailable"),
    ],
)
def test_what_the_keyring_cannot_give(ring: Ring, found: Any, code: str) -> None:
    ring.found = found
    with pytest.raises(EdgewiseError) as caught:
        Secrets(env={}).get("far-key")
    assert caught.value.code == code
    assert "EDGEWISE_SECRET_FAR_KEY" in str(caught.value.hint)
    assert KEY not in str(caught.value.to_dict())
    assert caught.value.__cause__ is None


def test_the_keyring_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(EdgewiseError) as caught:
        Secrets(env={}).get("far-key")
    assert caught.value.code == "cloud-extra-missing"


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret("k", KEY)
    shown = f"{secret} {secret!r} {[secret]} {secret!s:>40} {dir(secret)}"
    assert KEY not in shown
    assert not hasattr(secret, "__dict__")
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            copying(secret)
    assert secret == Secret("other", KEY)
    assert secret != Secret("k", "x")
    assert secret != KEY


@pytest.mark.parametrize("value", ["", "a b"])
def test_without_a_key_nothing_is_sent(desk: Desk, value: str) -> None:
    desk.key = value
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server))
        assert server.connections == 0
    assert (failure.fault, failure.code) == (CloudFault.PERMISSION, "secret-invalid")
    assert (failure.attempts, failure.may_have_acted) == (0, False)


def test_a_keyring_that_waits_for_the_user_ends_at_the_deadline(desk: Desk) -> None:
    import threading

    release = threading.Event()
    desk._read = lambda *_: str(release.wait(20))  # type: ignore[method-assign]
    desk.client._secrets = Secrets(env={}, keyring=desk._read)
    with RawServer(stream(*GOOD)).running() as server:
        failure = desk.fails(at(server), deadline_s=0.2)
        release.set()
        assert server.connections == 0
    assert failure.code == "cloud-deadline"
