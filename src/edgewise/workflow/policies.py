"""The policy of a home: which file it is, whose keys it trusts, and that it does not go back."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec

from edgewise.errors import EdgewiseError, InputError, IntegrityError
from edgewise.route import DEFAULT_POLICY
from edgewise.route.facts import PolicyTrust
from edgewise.route.policy_file import LoadedPolicy, in_force, read_policy
from edgewise.route.policy_marks import PolicyMark, PolicyMarks, refusal
from edgewise.workflow.context import Context

__all__ = ["accept_policy", "has_policy", "inspect_policy", "keys_folder", "load_policy"]

_POLICY_NAMES = ("policy.toml", "policy.json")


def keys_folder(context: Context) -> Path:
    """Return where the keys lie that policies may be signed with, one ``NAME.pub`` each."""
    return context.home.root / "policy-keys"


def load_policy(
    context: Context, path: Path | None = None, *, advance: bool = True
) -> LoadedPolicy:
    """Return the policy of a file, else of the home, else the one that is built in.

    A signed policy is held against the mark of its name, the newest revision that was in force
    here. An unsigned one is not, and has no mark; where it is told below that nothing leaves under
    it, its trust is ``untrusted``, whatever it says of itself.

    - A policy of the home that is unsigned, where the home trusts keys: else a file that anybody
      put there would do what a signed one was made for.
    - One of any place that is unsigned, where a signed one of its name was in force: else taking a
      signature away would get more than leaving it.
    - One whose mark cannot be read or written: nobody takes "cannot tell" for "is not older".

    Args:
        context: Whose home.
        path: A policy's file; the home's own by default.
        advance: Whether the mark moves on to it where it is newer. A question of what would be
            leaves it where it is.

    Raises:
        InputError: it cannot be read, is not of the schema, or the home has two
            (``policy-ambiguous``).
        IntegrityError: its signature is wrong, or it is older than its mark (``policy-older``) or
            another one of the same revision (``policy-revision-reused``).
    """
    loaded = _read(context, path)
    found, refused = _held(PolicyMarks(context.home), loaded, advance=advance)
    if refused is not None:
        raise refused
    return found


def inspect_policy(context: Context, path: Path) -> tuple[LoadedPolicy, IntegrityError | None]:
    """Return the policy of a file, and what :func:`load_policy` would refuse it with.

    The mark stays where it is. Raises as that does, but for the refusal.
    """
    return _held(PolicyMarks(context.home), _read(context, path), advance=False)


def accept_policy(context: Context, path: Path) -> tuple[PolicyMark | None, PolicyMark]:
    """Set the mark of a signed policy's name to it, also back; return the mark before and now.

    Raises:
        InputError: it cannot be read, or nobody signed it (``policy-unsigned``).
        IntegrityError: its signature is wrong, or the database is damaged.
        ResourceError: the database cannot be written.
    """
    loaded = read_policy(path, keys_folder(context))
    if loaded.trust is not PolicyTrust.SIGNED:
        raise InputError(
            "policy-unsigned",
            f"the policy {path} is not signed, so there is nothing to accept: {loaded.reason}",
            context={"path": str(path)},
            hint=f"edgewise policy sign {path} --key KEY",
        )
    return PolicyMarks(context.home).accept(loaded.policy, loaded.key)


def has_policy(context: Context) -> bool:
    """Return whether the home has a policy of its own.

    Raises:
        InputError: it cannot be told (``policy-unreadable``), or it has two (``policy-ambiguous``).
    """
    return _own_policy(context) is not None


def _read(context: Context, path: Path | None) -> LoadedPolicy:
    if path is not None:
        return read_policy(path, keys_folder(context))
    own = _own_policy(context)
    if own is None:
        return LoadedPolicy(
            policy=DEFAULT_POLICY, trust=PolicyTrust.BUILT_IN, reason="it is part of Edgewise"
        )
    loaded = read_policy(own, keys_folder(context))
    if loaded.trust is PolicyTrust.SIGNED or not _trusts_keys(context):
        return loaded
    return _untrusted(loaded, f"{loaded.reason}, and this home trusts keys")


def _held(
    marks: PolicyMarks, loaded: LoadedPolicy, *, advance: bool
) -> tuple[LoadedPolicy, IntegrityError | None]:
    """Return a policy as far as its mark lets it be trusted, and why it may not be in force."""
    policy = loaded.policy
    if not loaded.lets_leave:
        return loaded, None
    try:
        if loaded.trust is PolicyTrust.SIGNED:
            # One that is staged for later, or over, takes nothing from the one in force.
            counts = advance and in_force(policy, dt.datetime.now(dt.UTC))
            mark = marks.see(policy, loaded.key) if counts else marks.find(policy.name)
            return loaded, refusal(policy, mark)
        mark = marks.find(policy.name)
    except EdgewiseError as error:
        why = f"whether a newer one was in force here cannot be told: {error.message}"
        return _untrusted(loaded, why), None
    if mark is None:
        return loaded, None
    why = f"{loaded.reason}, and a signed one of its name was in force here, {mark.version}"
    return _untrusted(loaded, why), None


def _untrusted(loaded: LoadedPolicy, why: str) -> LoadedPolicy:
    return msgspec.structs.replace(loaded, trust=PolicyTrust.UNTRUSTED, reason=why)


def _own_policy(context: Context) -> Path | None:
    """Return the home's policy; a link that leads nowhere is one, which cannot be read."""
    root = context.home.root
    try:
        found = [root / name for name in _POLICY_NAMES if _lies_there(root / name)]
    except OSError as error:
        raise _unreadable(root, error) from error
    if len(found) > 1:
        raise InputError(
            "policy-ambiguous",
            f"the home {root} has two policies: {' and '.join(_POLICY_NAMES)}",
            context={"path": str(root)},
            hint="remove the one that is not meant",
        )
    return found[0] if found else None


def _lies_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _trusts_keys(context: Context) -> bool:
    folder = keys_folder(context)
    try:
        return any(one.suffix == ".pub" for one in folder.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        "policy-unreadable",
        f"whether {path} holds a policy or its keys cannot be told: {error.strerror or error}",
        context={"path": str(path)},
        hint="let this user read and search the home's folder",
    )
