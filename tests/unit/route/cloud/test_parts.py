"""The small parts: when a wait ends, what Retry-After means, and any stream there can be."""

from __future__ import annotations

import itertools
import json
import threading
import time
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.route.cloud.servers import DONE, FINISH, GOOD, delta

from edgewise.route.cloud import CancelToken, CloudFault, faults
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.reading import Said, read_stream, read_whole
from edgewise.route.cloud.retry import backoff_s, may_repeat, retry_after_s
from edgewise.route.cloud.waiting import Span

NOW = 1_800_000_000.0
LATER = formatdate(NOW + 30, usegmt=True)


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        (None, None, None), ("", None, None), ("soon", None, None), ("-1", None, None),
        ("1.5", None, None), ("٣", None, None), ("9" * 400, None, None), ("0", None, 0.0),
        (" 7 ", None, 7.0), (LATER, None, 30.0), (LATER, formatdate(NOW + 10, usegmt=True), 20.0),
        (LATER, "nonsense", 30.0), (formatdate(NOW - 99, usegmt=True), None, 0.0),
        ("Wed, 99 Nov 99999 00:00:00 GMT", None, None),
    ],
)  # fmt: skip
def test_retry_after(text: str | None, date: str | None, seconds: float | None) -> None:
    found = retry_after_s(text, date=date, now_s=NOW)
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_the_wait_doubles_up_to_a_bound_and_heeds_the_server() -> None:
    most = [backoff_s(n, None, uniform=lambda _low, high: high) for n in range(1, 8)]
    assert most == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert backoff_s(1, 9.0, uniform=lambda low, _high: low) == 9.0
    assert all(0 <= backoff_s(1, None) <= 0.5 for _ in range(100))
    assert len({backoff_s(3, None) for _ in range(20)}) > 1


def test_what_may_be_repeated() -> None:
    trouble = faults.status_fault(503, None, retry_after_s=None)
    assert may_repeat(trouble, answered=False)
    assert not may_repeat(trouble, answered=True)
    for fault in (faults.cancelled(), faults.broken("x"), faults.web_page(200)):
        assert not may_repeat(fault, answered=False)


def test_a_token_wakes_what_waits_and_what_comes_late() -> None:
    token = CancelToken()
    woken: list[int] = []
    with token.waking(lambda: woken.append(1)):
        token.cancel()
        token.cancel()
    assert woken == [1, 1]
    with token.waking(lambda: woken.append(2)):
        assert woken[-1] == 2
    token.cancel()
    assert woken == [1, 1, 2]  # nothing is woken after its block


def test_a_span_ends_its_waits() -> None:
    with Span(0.05, CancelToken()) as span, pytest.raises(FaultError) as caught:
        span.sleep(30)
    assert caught.value.fault.error.code == "cloud-deadline"
    token = CancelToken()
    with Span(30, token) as span:
        threading.Timer(0.05, token.cancel).start()
        began = time.monotonic()
        with pytest.raises(FaultError) as caught:
            span.sleep(30)
        assert time.monotonic() - began < 15
        assert caught.value.fault.kind is CloudFault.CANCELLED
        with pytest.raises(FaultError):
            span.run(lambda: 1, most_s=1, doing="nothing")


def test_a_call_in_a_thread_gives_back_what_it_returns_or_raises() -> None:
    def fails() -> int:
        raise KeyError("x")

    with Span(30, CancelToken()) as span:
        assert span.run(lambda: 7, most_s=10, doing="counting") == 7
        with pytest.raises(KeyError):
            span.run(fails, most_s=10, doing="failing")


seen: set[CloudFault] = set()


def heard(data: bytes) -> tuple[str, bool]:
    """Return the text of a stream and whether it was whole."""
    said = Said()
    words: list[str] = []
    try:
        read_stream([data], said, words.append)
        said.calls(set())
    except FaultError as error:
        seen.add(error.fault.kind)
        return "".join(words), False
    return "".join(words), True


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    heard(data)
    said = Said()
    try:
        read_whole([data], said, lambda _text: None)
    except FaultError as error:
        seen.add(error.fault.kind)
    assert seen <= {CloudFault.BROKEN_ANSWER, CloudFault.VALIDATION}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "delta", "content", "index", "finish_reason", "error", "usage",
                         "tool_calls", "function", "arguments", "message"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused(value: object) -> None:
    data = json.dumps(value).encode()
    heard(b"data: " + data + b"\n\n" + FINISH + DONE)
    said = Said()
    try:
        read_whole([data], said, lambda _text: None)
    except FaultError:
        return
    assert said.finish is not None


WHOLE = b"".join(GOOD)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_where_a_stream_is_split_does_not_matter(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    said = Said()
    words: list[str] = []
    read_stream([WHOLE[a:b] for a, b in itertools.pairwise(edges)], said, words.append)
    assert (said.text, words, said.done) == ("Hello", ["Hel", "lo"], True)


@settings(deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_stream_that_is_cut_anywhere_is_whole_only_after_its_end(cut: int) -> None:
    text, whole = heard(WHOLE[:cut])
    assert "Hello".startswith(text)
    assert whole == (cut >= len(b"".join(GOOD[:3])))


@settings(deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_one_changed_byte_never_raises_anything_else(place: int, byte: int) -> None:
    heard(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])


def test_pieces_are_heard_as_they_come() -> None:
    said = Said()
    words: list[str] = []

    def pieces() -> object:
        yield delta("a")
        assert words == ["a"]
        yield delta("b") + FINISH + DONE

    read_stream(pieces(), said, words.append)  # type: ignore[arg-type]
    assert words == ["a", "b"]
