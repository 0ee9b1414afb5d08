"""The commands as a user calls them, in processes of their own, on a ready home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

Call = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def edgewise(ready_home: Path) -> Call:
    def call(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "edgewise.cli", *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            check=False,
            timeout=300,
            env={**os.environ, "EDGEWISE_HOME": str(ready_home)},
        )

    return call


def error(result: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)["error"]
    return found


def test_run_puts_the_text_on_stdout_and_the_rest_on_stderr(edgewise: Call) -> None:
    result = edgewise("run", "Say hello.", "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(b"\n")
    assert b"local by local-default-2" not in result.stdout
    assert b"local by local-default-2" in result.stderr
    assert b"tok/s" in result.stderr
    assert b"cut at the limit of 8 tokens" in result.stderr


def test_run_json_is_one_object_with_the_whole_outcome(edgewise: Call) -> None:
    result = edgewise("run", "Say hello.", "--max-tokens", "8", "--json")
    outcome = json.loads(result.stdout)
    assert outcome["outcome"] == "completed"
    assert outcome["finish"] == "length"
    assert outcome["tokens"]["completion"] == 8
    provenance = outcome["provenance"]
    assert provenance["route"]["route"] == "local"
    assert all(rule["reason"] for rule in provenance["route"]["rules"])
    assert len(provenance["fingerprint"]) == 64
    assert outcome["timings"]["ttft_ms"]["kind"] == "measured"


def test_run_reads_a_prompt_from_stdin(edgewise: Call) -> None:
    piped = edgewise("run", "--max-tokens", "6", stdin="Say hello, 漢字 é.".encode())
    given = edgewise("run", "Say hello, 漢字 é.", "--max-tokens", "6")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == given.stdout


@pytest.mark.parametrize(
    ("stdin", "code"),
    [(b"caf\xe9", "stdin-not-utf8"), (b"", "prompt-empty"), (b"  \n", "prompt-empty")],
)
def test_bad_input_on_stdin(edgewise: Call, stdin: bytes, code: str) -> None:
    result = edgewise("run", "--json", stdin=stdin)
    assert result.returncode == 2
    assert error(result)["code"] == code
    assert error(result)["hint"]


def test_an_invalid_argument_byte_is_refused(ready_home: Path) -> None:
    result = subprocess.run(
        [sys.executable.encode(), b"-m", b"edgewise.cli", b"run", b"caf\xe9", b"--json"],
        capture_output=True,
        check=False,
        env={**os.environ, "EDGEWISE_HOME": str(ready_home)},
    )
    assert result.returncode == 2
    assert error(result)["code"] == "text-not-utf8"


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("run", ""), 2, "prompt-empty"),
        (("run", "x " * 9000), 2, "prompt-too-long"),
        (("run", "Hi", "--max-tokens", "99999"), 2, "context-too-small"),
        (("run", "Hi", "--max-tokens", "0"), 2, "request-invalid"),
        (("run", "Hi", "--temperature", "-1"), 2, "request-invalid"),
        (("run", "Hi", "--top-k", "5"), 2, "sampling-contradiction"),
        (("run", "Hi", "--fingerprint", "ffff"), 2, "bundle-not-found"),
        (("run", "Hi", "--no-such-option"), 2, "usage"),
        (("plan", "--tier", "toaster", "--offline"), 2, "tier-unknown"),
        (("plan", "/no/such/model.gguf"), 2, "file-missing"),
        (("plan", "--context", "0", "--offline"), 2, "run-config-invalid"),
        (("fetch", "pypi:nothing"), 2, "reference-invalid"),
        (("evidence", "show", "ffffffff"), 2, "evidence-not-found"),
        (("diff", "ffff"), 2, "bundle-not-found"),
        (("run", "Hi", "--deadline", "0.001"), 5, None),
    ],
)
def test_refusals(
    edgewise: Call, arguments: tuple[str, ...], status: int, code: str | None
) -> None:
    as_json = () if arguments[0] == "evidence" else ("--json",)
    result = edgewise(*arguments, *as_json)
    assert result.returncode == status, (result.stdout, result.stderr)
    if code is not None and as_json:
        assert error(result)["code"] == code
    if code is not None:
        assert f"error: {code}".encode() in result.stderr


def test_plan_says_why_it_fits(edgewise: Call) -> None:
    result = edgewise("plan", "--offline", "--json", "--context", "2048")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["verdict"] == "fits"
    assert plan["reasons"]
    for line in ("weights", "kv_cache", "workspace", "runtime", "app", "peak", "budget"):
        quantity = plan["memory"][f"{line}_bytes"]
        assert quantity["kind"] in {"measured", "estimated", "declared"}
        assert quantity["source"]
        assert quantity["value"] > 0
    assert plan["memory"]["kv_cache_bytes"]["value"] == 45 << 20
    ceiling = plan["decode"]["ceiling_tok_s"]
    if ceiling["kind"] == "unknown":  # a cache so large that no buffer measures memory alone
        assert "last-level cache" in ceiling["reason"]
    else:
        assert ceiling["value"] > 10


@pytest.mark.parametrize("tier", ["raspberry-pi", "browser-tab", "phone-flagship"])
def test_plan_for_a_tier(edgewise: Call, tier: str) -> None:
    plan = json.loads(edgewise("plan", "--offline", "--json", "--tier", tier).stdout)
    assert plan["verdict"] == "fits"
    assert plan["tier"]["name"] == tier
    assert b"NaN" not in json.dumps(plan).encode()


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("context", ["512", "2048"])
def test_the_planned_peak_is_the_measured_peak(edgewise: Call, context: str, kv: str) -> None:
    result = edgewise("plan", "--offline", "--json", "--measure", "--context", context, "--kv", kv)
    ratio = json.loads(result.stdout)["measured"]["planned_over_measured_ratio"]
    assert 0.9 <= ratio <= 1.1


def test_fingerprint_diff_and_evidence(edgewise: Call, ready_home: Path) -> None:
    shown = json.loads(edgewise("fingerprint", "--json").stdout)
    fingerprint = shown["fingerprint"]
    assert fingerprint == (ready_home / "active").read_text().strip()
    assert shown["deployment"]["artifact"]["sha256"].startswith("b179c952")
    same = edgewise("diff", fingerprint[:8])
    assert same.stdout.decode().strip() == "the same deployment"
    listed = json.loads(edgewise("evidence", "list", "--json").stdout)
    kinds = {piece["kind"] for piece in listed}
    assert {"device", "plan", "build", "tuning", "smoke", "activation"} <= kinds
    smoke = next(piece for piece in listed if piece["kind"] == "smoke")
    assert smoke["subject"] == fingerprint
    opened = json.loads(edgewise("evidence", "show", smoke["digest"][:10]).stdout)
    assert opened["digest"] == smoke["digest"]
    assert opened["evidence"]["figures"]["passed"] is True


def test_probe_says_kind_and_source_for_every_value(edgewise: Call) -> None:
    profile = json.loads(edgewise("probe", "--json").stdout)

    def check(value: object, path: str) -> int:
        if isinstance(value, dict):
            if "kind" in value:
                assert value["kind"] in {"measured", "estimated", "declared", "unknown"}, path
                assert value.get("source") or value.get("reason"), path
                return 1
            return sum(check(inner, f"{path}.{key}") for key, inner in value.items())
        if isinstance(value, list):
            return sum(check(inner, path) for inner in value)
        return 0

    assert check(profile, "") > 40
    assert profile["runtimes"][0]["name"] == "llamacpp"
    assert profile["runtimes"][0]["can_run"] is True
    assert 0 <= profile["active_model_page_cache_ratio"]["value"] <= 1


def test_without_a_model_the_hint_is_to_set_one_up(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edgewise.cli", "run", "Hi"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EDGEWISE_HOME": str(tmp_path / "nothing")},
    )
    assert result.returncode == 2
    assert "edgewise up" in result.stderr
    assert not (tmp_path / "nothing").exists()
