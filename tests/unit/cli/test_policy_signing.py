"""Keys of policies: none is replaced unasked, and what cannot be used is said as what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.docs.pages import DOCS

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


def findings(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    assert root.main(["policy", "check", str(file), "--json"], standalone_mode=False) == 0
    return {one["code"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def test_the_check_says_that_nothing_leaves_until_it_is_signed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "support.toml"
    file.write_text((DOCS / "examples" / "support.toml").read_text("utf-8"), encoding="utf-8")
    found = findings(file, capsys)["policy-not-trusted"]
    assert found["severity"] == "warning"
    assert "nothing leaves under it until a key that this home trusts signs it" in found["message"]
    run("keygen", "team", "--key", folder / "team.key")
    run("sign", file, "--key", folder / "team.key")
    assert "policy-not-trusted" not in findings(file, capsys)


def test_the_check_names_the_kinds_of_evidence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "e.toml"
    file.write_text('name = "e"\n[[tasks]]\nname = "a"\nevidence = ["smoke", "nothing-like-it"]\n')
    found = findings(file, capsys)["evidence-unknown"]
    assert (found["severity"], found["place"]) == ("warning", "tasks.a.evidence")
    assert "nothing-like-it" in found["message"]
    assert "parity" in found["message"]
    assert "smoke" in found["message"]
