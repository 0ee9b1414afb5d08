"""Keys of policies: none is replaced unasked, and what cannot be used is said as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.cli.root import root
from edgewise.errors import EdgewiseError, InputError
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import read_policy
from edgewise.store import Home

POLICY = 'name = "team"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEWISE_HOME", str(tmp_path / "home"))
    (tmp_path / "p.toml").write_text(POLICY, encoding="utf-8")
    return tmp_path


def run(*arguments: object) -> None:
    root.main(["policy", *map(str, arguments)], standalone_mode=False)


def refused(*arguments: object) -> EdgewiseError:
    with pytest.raises(EdgewiseError) as caught:
        run(*arguments)
    return caught.value


def trusted(folder: Path) -> PolicyTrust:
    return read_policy(folder / "p.toml", Home().root / "policy-keys").trust


def test_a_trusted_key_is_replaced_only_when_that_is_said(folder: Path) -> None:
    run("keygen", "team", "--key", folder / "first.key")
    run("sign", folder / "p.toml", "--key", folder / "first.key")
    error = refused("keygen", "team", "--key", folder / "second.key")
    assert isinstance(error, InputError)
    assert error.code == "policy-key-exists"
    assert not (folder / "second.key").exists()
    assert trusted(folder) is PolicyTrust.SIGNED
    run("keygen", "team", "--key", folder / "second.key", "--replace")
    with pytest.raises(EdgewiseError, match="keys that it trusts: team") as caught:
        trusted(folder)
    assert str(Home().root / "policy-keys") in (caught.value.hint or "")
    run("sign", folder / "p.toml", "--key", folder / "second.key")
    assert trusted(folder) is PolicyTrust.SIGNED


def test_a_private_key_that_cannot_be_written_leaves_no_trust(folder: Path) -> None:
    assert refused("keygen", "team", "--key", folder / "no" / "a.key").code == "policy-key-invalid"
    assert not (Home().root / "policy-keys" / "team.pub").exists()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "policy-key-unreadable"),
        (b"", "policy-key-invalid"),
        (b"!", "policy-key-invalid"),
        (b"QUJD", "policy-key-invalid"),
    ],
)
def test_a_private_key_that_is_none(folder: Path, data: bytes | None, code: str) -> None:
    key = folder / "some.key"
    if data is not None:
        key.write_bytes(data)
    error = refused("sign", folder / "p.toml", "--key", key)
    assert isinstance(error, InputError)
    assert error.code == code
    assert "edgewise policy keygen" in (error.hint or "")
    assert not (folder / "p.toml.sig").exists()


def test_a_signature_that_cannot_be_written(folder: Path) -> None:
    run("keygen", "team", "--key", folder / "first.key")
    (folder / "p.toml.sig").mkdir()
    error = refused("sign", folder / "p.toml", "--key", folder / "first.key")
    assert error.code == "policy-signature-unwritable"
