"""Policies: read strictly, signed, linted, compared."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from tests.unit.route.policies import WHOLE

from edgewise.core.request import DataClass
from edgewise.errors import InputError, IntegrityError
from edgewise.route.destinations import Basis
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy import (
    DEFAULT_POLICY,
    ClassifierRule,
    CloudUse,
    ConsentRule,
    Policy,
    RecordRule,
)
from edgewise.route.policy_file import (
    in_force,
    parse_policy,
    policy_schema,
    public_key,
    read_policy,
    sign_policy,
)
from edgewise.route.policy_lint import Severity, lint_policy

KEY = bytes(range(32))
NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)


def written(folder: Path, text: str = WHOLE, name: str = "policy.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def codes(policy: Policy) -> list[tuple[str, str]]:
    return [(found.code, found.place) for found in lint_policy(policy)]


def changed(tmp_path: Path, old: str, new: str) -> Policy:
    assert old in WHOLE
    return parse_policy(written(tmp_path, WHOLE.replace(old, new, 1)))


def test_a_whole_policy_says_what_it_says(tmp_path: Path) -> None:
    policy = parse_policy(written(tmp_path))
    assert policy.by_task["draft"].cloud is CloudUse.WHEN_NEEDED
    assert policy.classes["health"] is DataClass.LOCAL_ONLY
    assert policy.classes["ticket"] is DataClass.PERSONAL
    assert policy.asks("ticket", "acme").standing_days == 30
    assert policy.asks("public", "acme") == ConsentRule()
    assert policy.places["acme"].origin == "https://api.acme.example:443"
    assert codes(policy) == []


def test_toml_and_json_are_the_same_policy_and_fit_the_published_schema(tmp_path: Path) -> None:
    first = parse_policy(written(tmp_path))
    data = json.loads(msgspec.json.encode(first))
    second = parse_policy(written(tmp_path, json.dumps(data), "policy.json"))
    assert second == first
    assert second.digest == first.digest
    jsonschema.Draft202012Validator.check_schema(policy_schema())
    jsonschema.validate(data, policy_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "cluod": 1}, policy_schema())


CLASSIFIER = f"""
[classifier]
evidence = "{"e" * 64}"
otherwise = "chat"
may_leave = ["draft"]
"""


def test_a_policy_without_a_classifier_has_the_digest_that_it_had(tmp_path: Path) -> None:
    """Signatures and fingerprints of earlier versions hold."""
    assert DEFAULT_POLICY.digest.startswith("f8982d0066ffc86a")
    assert parse_policy(written(tmp_path)).digest.startswith("5db5111875482523")


def test_a_classifier_is_part_of_what_is_signed(tmp_path: Path) -> None:
    plain, with_one = (
        parse_policy(written(tmp_path)),
        written(tmp_path, WHOLE + CLASSIFIER, "c.toml"),
    )
    found = parse_policy(with_one)
    assert found.classifier == ClassifierRule(
        evidence="e" * 64, otherwise="chat", may_leave=("draft",)
    )
    other = parse_policy(written(tmp_path, (WHOLE + CLASSIFIER).replace("eee", "fff"), "d.toml"))
    assert len({plain.digest, found.digest, other.digest}) == 3
    again = parse_policy(written(tmp_path, msgspec.json.encode(found).decode(), "c.json"))
    assert again.digest == found.digest
    jsonschema.validate(json.loads(msgspec.json.encode(found)), policy_schema())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("eee", "EEE", "no digest"),
        ("eee", "ee", "no digest"),
        ('otherwise = "chat"', 'otherwise = "chta"', "'chta'"),
        ('may_leave = ["draft"]', 'may_leave = ["darft"]', "'darft'"),
        ('may_leave = ["draft"]', 'may_leave = "draft"', "array"),
        ('otherwise = "chat"', "minimum_accuracy = nan", "minimum_accuracy"),
        ('otherwise = "chat"', "minimum_accuracy = 1", "minimum_accuracy"),
        ('otherwise = "chat"', "minimum_confidence = 0", "minimum_confidence"),
        ('otherwise = "chat"', "max_age_days = 0", "max_age_days"),
        ('otherwise = "chat"', "data_class = 'public'", "data_class"),
        ('[[tasks]]\nname = "chat"', '[[tasks]]\nname = "auto"', "'auto'"),
    ],
)
def test_a_classifier_that_cannot_be_used(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (WHOLE + CLASSIFIER).replace(old, new, 1)
    assert text != WHOLE + CLASSIFIER
    with pytest.raises(InputError, match=words):
        parse_policy(written(tmp_path, text))


def test_a_task_that_may_leave_and_never_does_is_found(tmp_path: Path) -> None:
    text = (WHOLE + CLASSIFIER).replace('may_leave = ["draft"]', 'may_leave = ["chat"]')
    policy = parse_policy(written(tmp_path, text))
    assert [found.place for found in lint_policy(policy) if found.code == "unreachable"] == [
        "classifier.may_leave"
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("revision = 3", "revision = 'three'", "revision"),
        ("revision = 3", "revison = 3", "revison"),
        ("revision = 3", "revision = ", "line 3"),
        ("revision = 3", "schema_version = 1", "schema_version is 1"),
        ('name = "support"', 'name = ""', "no name"),
        ('cloud = "when-needed"', 'cloud = "always"', "always"),
        ('destinations = ["acme"]', 'destinations = ["emca"]', "'emca'"),
        ('data_classes = ["public"', 'data_classes = ["pubic"', "'pubic'"),
        ('destination = "acme"', 'destination = "emca"', "'emca'"),
        ('name = "health"', 'name = "Health data"', "'Health data'"),
        ('feature = "support-assistant"', 'feature = "*"', "feature of this consent"),
        ('purpose = "drafts', 'purpose = " drafts', "purpose of this consent"),
        ("2999-01-01T00:00:00Z", "tomorrow", "no date"),
        ('fields = ["messages"]', 'fields = ["mesages"]', "'mesages'"),
        ('name = "health"', 'name = "public"', "two rules are for the data class 'public'"),
        ('name = "draft"', 'name = "chat"', "two rules are for the task 'chat'"),
        ("https://api", "http://api", "https"),
        ("https://api.acme.example/v1", "https://u:p@acme.example/v1", "plain address"),
        ("daily_limit = 5", "daily_limit = -5", "0 or more"),
        ("daily_limit = 5", "daily_limit = nan", "0 or more"),
    ],
)
def test_a_policy_that_cannot_be_used(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        changed(tmp_path, old, new)
    assert caught.value.code in {"policy-malformed", "policy-invalid", "destination-invalid"}
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ('cloud = "when-needed"', 'cloud = "always"', "one of: never, preferred, when-needed"),
        ('like = "personal"', 'like = "privat"', "one of: local-only, personal, public, sensitive"),
        ('basis = "consent"', 'basis = "ask"', "one of: consent, contract, legal-obligation,"),
        ('thermal_max = "fair"', 'links = ["on"]', "one of: captive, "),
        ("revision = 3", "revison = 3", "did you mean revision?"),
        ("[limits]", "[limit]", "did you mean limits?"),
        ("daily_limit = 5", "daly_limit = 5", "did you mean daily_limit?"),
        ("standing_days = 30", "standing_day = 30", "did you mean standing_days?"),
        ("revision = 3", "temperature = 1", "a field temperature in [limits]"),
        ("[limits]", "[limits]\nfields = []", "a field fields in [[minimise]]"),
        ("[limits]", "[limits]\nexpires_at = ''", "a field expires_at in the policy itself"),
        ("[limits]", "[limits]\nqqqq = 1", "are: characters, cloud_characters, max_tokens"),
        ("revision = 3", "revision = 'x'", "edgewise policy schema"),
        ("revision = 3", "revision = ", "edgewise policy schema"),
    ],
)
def test_a_mistake_comes_with_what_is_right(tmp_path: Path, old: str, new: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(tmp_path, old, new)
    assert hint in (caught.value.hint or "")


def test_a_name_that_is_not_defined_comes_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'emca', which it does not define; defined: acme"):
        changed(tmp_path, 'destinations = ["acme"]', 'destinations = ["emca"]')


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"a" * (2 << 20), b"x = " + b"[" * 5000, b'{"name": "a", "name": "b"}']
)
@pytest.mark.parametrize("name", ["policy.toml", "policy.json"])
def test_what_is_no_policy(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError):
        parse_policy(path)


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ('cloud = "when-needed"', 'cloud = "never"', "unreachable", "tasks.draft.destinations"),
        ('cloud = "when-needed"', 'cloud = "never"', "unreachable", "tasks.draft.escalate"),
        ('cloud = "when-needed"', 'cloud = "never"', "unreachable", "tasks.draft.delay_safe"),
        ('destinations = ["acme"]', "", "unreachable", "tasks.draft.cloud"),
        ('destinations = ["acme"]', "", "unreachable", "destinations.acme"),
        ('["public", "ticket", "health"]', '["health"]', "contradiction", "tasks.draft"),
        ('basis = "consent"', "", "no-basis", "tasks.draft.destinations"),
        ("purpose =", "# purpose =", "no-purpose", "tasks.draft.destinations"),
        ('fields = ["messages"]', "", "no-fields", "tasks.draft.destinations"),
        ('region = "EU"', "", "no-region", "tasks.draft.destinations"),
        ("retention_days = 0", "", "no-retention", "tasks.draft.destinations"),
        ("price =", "# price =", "no-price", "tasks.draft.destinations"),
        ("standing_days = 30", "ask = false", "contradiction", "consent[0]"),
        (
            "standing_days = 30",
            'standing_days = 3\n[[consent]]\ndata_class = "ticket"\ndestination = "acme"',
            "unreachable",
            "consent[1]",
        ),
        (
            'fields = ["messages"]',
            'fields = ["messages"]\n[[minimise]]\ndestination = "acme"',
            "unreachable",
            "minimise[1]",
        ),
        ("2999-01-01", "2025-01-01", "never-in-force", "expires_at"),
        ('expires_at = "2999-01-01T00:00:00Z"', "", "never-expires", "expires_at"),
        ("revision = 3", "require_signature = false", "unsigned-allowed", "require_signature"),
        ('data_class = "ticket"', 'data_class = "health"', "unreachable", "consent[0]"),
        ('data_class = "ticket"', 'data_class = "local-only"', "unreachable", "consent[0]"),
        ('data_class = "ticket"', 'data_class = "sensitive"', "unreachable", "consent[0]"),
        ('cloud = "when-needed"', 'cloud = "never"', "unreachable", "consent[0]"),
        (
            'cloud = "when-needed"',
            'cloud = "preferred"',
            "consent-rarely-asked",
            "tasks.draft.cloud",
        ),
    ],
)
def test_what_is_wrong_with_a_policy_is_found(
    tmp_path: Path, old: str, new: str, code: str, place: str
) -> None:
    assert (code, place) in codes(changed(tmp_path, old, new))


def test_rules_of_consent_that_have_a_point_are_left_alone(tmp_path: Path) -> None:
    for old, new in (
        ('data_class = "ticket"', 'data_class = "public"'),
        ('data_class = "ticket"', 'data_class = "*"'),
        ('destination = "acme"\nstanding', 'destination = "*"\nstanding'),
    ):
        assert codes(changed(tmp_path, old, new)) == []
    unasked = changed(tmp_path, 'cloud = "when-needed"', 'cloud = "preferred"')
    place = msgspec.structs.replace(unasked.destinations[0], basis=Basis.CONTRACT)
    rule = ConsentRule(data_class="*", ask=False)
    policy = msgspec.structs.replace(unasked, destinations=(place,), consent=(rule,))
    assert "consent-rarely-asked" not in {code for code, _ in codes(policy)}


@pytest.mark.parametrize(
    ("old", "new", "code", "severity"),
    [
        ("2999-01-01", "2026-12-01", "expired", Severity.ERROR),
        ("2026-01-01", "2026-12-02", "not-yet", Severity.WARNING),
    ],
)
def test_dates_are_held_against_the_time_of_the_check(
    tmp_path: Path, old: str, new: str, code: str, severity: Severity
) -> None:
    policy = changed(tmp_path, old, new)
    (found,) = lint_policy(policy, NOW)
    assert (found.code, found.severity) == (code, severity)
    assert lint_policy(policy) == ()
    assert lint_policy(parse_policy(written(tmp_path)), NOW) == ()


def test_an_end_that_is_over_matters_less_where_nothing_leaves() -> None:
    (found,) = lint_policy(Policy(name="here", expires_at="2026-11-30"), NOW)
    assert (found.code, found.severity) == ("expired", Severity.WARNING)


def test_nobody_is_asked_about_sensitive_data_is_said(tmp_path: Path) -> None:
    policy = changed(tmp_path, "standing_days = 30", "ask = false")
    policy = msgspec.structs.replace(policy, consent=(ConsentRule(ask=False),))
    found = {finding.code: finding.severity for finding in lint_policy(policy)}
    assert found["sensitive-unasked"] is Severity.WARNING


def test_a_signature_holds_for_the_policy_and_not_for_another(tmp_path: Path) -> None:
    path, keys = written(tmp_path), tmp_path / "keys"
    keys.mkdir()
    assert read_policy(path, keys).trust is PolicyTrust.UNSIGNED
    beside = tmp_path / "policy.toml.sig"
    beside.write_text(sign_policy(parse_policy(path), KEY))
    with pytest.raises(IntegrityError, match="trusts"):
        read_policy(path, keys)
    (keys / "team.pub").write_bytes(base64.b64encode(public_key(KEY)))
    (keys / "other.pub").write_bytes(base64.b64encode(public_key(bytes(32))))
    found = read_policy(path, keys)
    assert found.trust is PolicyTrust.SIGNED
    assert "team" in found.reason
    written(tmp_path, "# a comment changes nothing\n" + WHOLE)
    assert read_policy(path, keys).trust is PolicyTrust.SIGNED
    written(tmp_path, WHOLE.replace("standing_days = 30", "standing_days = 31"))
    with pytest.raises(IntegrityError) as caught:
        read_policy(path, keys)
    assert caught.value.code == "policy-signature-wrong"


@pytest.mark.parametrize("damage", [b"", b"!!", b"QUJD", b"\xff" * 90])
def test_a_damaged_signature_or_key_is_no_signature(tmp_path: Path, damage: bytes) -> None:
    path, keys = written(tmp_path), tmp_path / "keys"
    keys.mkdir()
    (keys / "team.pub").write_bytes(damage)
    (tmp_path / "policy.toml.sig").write_text(sign_policy(parse_policy(path), KEY))
    with pytest.raises(IntegrityError):
        read_policy(path, keys)
    (keys / "team.pub").write_bytes(base64.b64encode(public_key(KEY)))
    (tmp_path / "policy.toml.sig").write_bytes(damage)
    with pytest.raises(IntegrityError):
        read_policy(path, keys)


@pytest.mark.parametrize(
    ("issued", "expires", "holds"),
    [
        ("", "", True),
        ("2026-11-30T00:00:00Z", "2026-12-02T00:00:00Z", True),
        ("2026-12-01T00:00:01Z", "", False),
        ("", "2026-12-01T00:00:00Z", False),
        ("2026-12-01T01:00:00+02:00", "", True),
    ],
)
def test_when_a_policy_holds(issued: str, expires: str, holds: bool) -> None:
    assert in_force(Policy(name="t", issued_at=issued, expires_at=expires), NOW) is holds


def test_a_date_that_is_none() -> None:
    with pytest.raises(InputError, match="no date") as caught:
        Policy(name="t", expires_at="tomorrow")
    assert caught.value.code == "policy-invalid"


def test_a_table_that_came_later_changes_no_policy_without_it(tmp_path: Path) -> None:
    """Else every signature would be void. The digest is one of before the table was known."""
    policy = parse_policy(written(tmp_path))
    assert policy.digest == "5db511187548252324bee4c6703d212b5259bd7fda1d1e6da4e6a1211de935e3"
    recording = changed(tmp_path, "[limits]", "[records]\nshare = 0.1\n[limits]")
    assert recording.digest != policy.digest
    another = changed(tmp_path, "[limits]", "[records]\nshare = 0.2\n[limits]")
    assert recording.digest != another.digest


def test_what_is_recorded_is_said(tmp_path: Path) -> None:
    assert "records-kept" not in {code for code, _ in codes(parse_policy(written(tmp_path)))}
    policy = changed(tmp_path, "[limits]", "[records]\nshare = 0.1\ndays = 7\n[limits]")
    (note,) = (found for found in lint_policy(policy) if found.place == "records")
    assert (note.code, note.severity) == ("records-kept", Severity.NOTE)
    assert "0.1" in note.message
    assert "7 days" in note.message
    rule = RecordRule(share=0.1, local_only=True)
    found = {
        one.code: one.severity for one in lint_policy(msgspec.structs.replace(policy, records=rule))
    }
    assert found["records-local-only"] is Severity.WARNING


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("temperature = 1.0", "temperature = nan", "limits.temperature"),
        ("deadline_s = 20", "deadline_s = inf", "tasks[1].deadline_s"),
        ("revision = 3", "revision = 99999999999999999999", "revision"),
        ("retention_days = 0", "retention_days = 9007199254740993", "destinations[0].retention"),
        ("standing_days = 30", "standing_days = -9007199254740993", "consent[0].standing_days"),
    ],
)
def test_a_number_that_no_digest_carries_is_refused(
    tmp_path: Path, old: str, new: str, where: str
) -> None:
    assert old in WHOLE
    with pytest.raises(InputError) as caught:
        changed(tmp_path, old, new)
    assert caught.value.code == "policy-invalid"
    assert where in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 20_000 + " = 1",
        "[a" + ' . "a\\"="' * 20_000 + "]",
        "b = ['''x\n''', {a" + ".a" * 20_000 + " = 1}]",
    ],
    ids=["key", "table", "after-a-string-of-two-lines"],
)
def test_a_key_of_very_many_parts_is_refused_before_it_is_read(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="more than 32 parts") as caught:
        parse_policy(written(tmp_path, text))
    assert caught.value.code == "policy-malformed"


def test_dots_in_texts_and_comments_are_no_keys(tmp_path: Path) -> None:
    dots = "e.g. " * 40
    text = WHOLE.replace('region = "EU"', f'region = "{dots}" # it\'s {dots}')
    assert parse_policy(written(tmp_path, text)).places["acme"].region == dots


def test_what_a_policy_is_refused_for_is_cut(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        parse_policy(written(tmp_path, 'name = "x"\n' + "k" * 900_000 + " = 1"))
    assert caught.value.code == "policy-malformed"
    assert len(str(caught.value)) + len(caught.value.hint or "") < 2000


def test_a_name_that_acts_on_a_terminal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="control characters") as caught:
        parse_policy(written(tmp_path, 'name = "a\\u001b[2J"'))
    assert caught.value.code == "policy-invalid"
    assert "\x1b" not in str(caught.value)
