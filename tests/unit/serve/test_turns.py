"""The fair queue: bounds, order, and turns between clients."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.serve.turns import LineFullError, Turns


def turns(total_max: int = 100, per_client_max: int = 100) -> Turns[str]:
    return Turns(total_max=total_max, per_client_max=per_client_max)


def drain(queue: Turns[str]) -> list[str]:
    taken = []
    while len(queue):
        item = queue.take()
        assert item is not None
        taken.append(item)
    return taken


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue = turns()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(item[0], item)
    assert drain(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_newcomer_does_not_wait_behind_a_long_line() -> None:
    queue = turns()
    for i in range(50):
        queue.put("greedy", f"g{i}")
    queue.put("modest", "m")
    assert drain(queue).index("m") == 1


@pytest.mark.parametrize(("own", "put"), [(True, ["a"] * 3), (False, ["a", "b", "c", "d", "e"])])
def test_bounds_hold_for_one_client_and_for_all(own: bool, put: list[str]) -> None:
    queue = turns(total_max=4, per_client_max=2)
    for client in put[:-1]:
        queue.put(client, client)
    with pytest.raises(LineFullError) as caught:
        queue.put(put[-1], "too much")
    assert caught.value.own is own
    assert len(queue) == len(put) - 1


def test_an_item_is_removed_wherever_it_stands() -> None:
    queue = turns()
    for item in ("a1", "a2", "a3", "b1"):
        queue.put(item[0], item)
    assert queue.remove("a", "a2")
    assert queue.remove("b", "b1")
    assert not queue.remove("b", "b1")
    assert drain(queue) == ["a1", "a3"]


def test_closing_lets_takers_go_and_returns_what_waited() -> None:
    queue = turns()
    found: list[str | None] = []
    taker = threading.Thread(target=lambda: found.append(queue.take()))
    taker.start()
    assert queue.close() == []
    taker.join(5)
    assert found == [None]
    queue = turns()
    queue.put("a", "a1")
    assert queue.close() == ["a1"]
    assert queue.take() is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=60))
def test_nothing_is_lost_and_no_client_is_passed_over(steps: list[tuple[str, bool]]) -> None:
    queue = turns()
    waiting: dict[str, list[str]] = {}
    since: dict[str, int] = {}  # how many others were served since a client began to wait
    for number, (client, take) in enumerate(steps):
        if not take:
            queue.put(client, item := f"{client}{number}")
            waiting.setdefault(client, []).append(item)
            since.setdefault(client, 0)
        elif len(queue):
            taken = queue.take()
            assert taken is not None
            assert taken == waiting[taken[0]].pop(0)
            for other in since:
                since[other] += 1
            if waiting[taken[0]]:
                since[taken[0]] = 0
            else:
                del waiting[taken[0]], since[taken[0]]
            assert all(passed < 4 for passed in since.values())
    assert len(queue) == sum(map(len, waiting.values()))
