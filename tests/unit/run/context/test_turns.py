"""Turns: what belongs together stays together."""

from __future__ import annotations

import time

from tests.unit.run.context.conversations import assistant, chat, system, tool, user

from edgewise.run.context.turns import Conversation, ranges


def test_a_turn_is_a_user_message_with_all_that_follows() -> None:
    messages = (
        system("s"),
        user("a"),
        assistant("", "c1"),
        tool("r", "c1"),
        assistant("b"),
        user("c"),
    )
    assert Conversation(messages).turns == ((1, 2, 3, 4), (5,))


def test_system_messages_belong_to_no_turn_and_keep_their_places() -> None:
    messages = (system("s"), user("a"), assistant("b"), system("t"), user("c"))
    conversation = Conversation(messages)
    assert conversation.turns == ((1, 2), (4,))
    assert conversation.newest(1) == (messages[0], messages[3], messages[4])


def test_what_comes_before_the_first_user_message_is_a_turn() -> None:
    assert Conversation((assistant("hello"), user("a"))).turns == ((0,), (1,))
    assert Conversation(()).turns == ()
    assert Conversation((system("s"),)).turns == ()


def test_a_user_message_between_a_call_and_its_result_does_not_part_them() -> None:
    messages = (
        user("a"),
        assistant("", "c1"),
        user("are you there?"),
        tool("r", "c1"),
        assistant("b"),
        user("c"),
    )
    assert Conversation(messages).turns == ((0, 1, 2, 3, 4), (5,))


def test_a_result_without_an_id_answers_the_latest_call() -> None:
    messages = (
        user("a"),
        assistant("", "c1"),
        user("b"),
        assistant("", "c2"),
        user("c"),
        tool("r", None),
    )
    assert Conversation(messages).turns == ((0, 1), (2, 3, 4, 5))


def test_an_id_that_is_used_twice_means_the_later_call() -> None:
    messages = (
        user("a"),
        assistant("", "call_0"),
        tool("r", "call_0"),
        user("b"),
        assistant("", "call_0"),
        tool("s", "call_0"),
        user("c"),
    )
    assert Conversation(messages).turns == ((0, 1, 2), (3, 4, 5), (6,))


def test_a_result_nobody_asked_for_stays_where_it_is() -> None:
    assert Conversation((user("a"), user("b"), tool("r", "c9"))).turns == ((0,), (1, 2))


def test_late_results_join_all_turns_in_between() -> None:
    messages = (
        user("a"),
        assistant("", "c1"),
        user("b"),
        assistant("", "c2"),
        user("c"),
        tool("r", "c2"),
        tool("r", "c1"),
    )
    assert Conversation(messages).turns == ((0, 1, 2, 3, 4, 5, 6),)


def test_a_call_whose_turn_has_joined_another_is_found_again() -> None:
    messages = (
        assistant("", "c1"),
        user(""),
        assistant("", "c3"),
        tool("", "c1"),  # joins the first two turns
        user(""),
        tool("", "c3"),  # the call is in what is now the first turn
        user("?"),
    )
    assert Conversation(messages).turns == ((0, 1, 2, 3, 4, 5), (6,))


def test_turns_are_kept_in_their_order() -> None:
    messages = chat(("a", "b"), ("c", "d"), ("e", "f"), last="g")
    kept = Conversation(messages).keep({3, 1})
    assert [m.content for m in kept] == ["c", "d", "g"]


def test_ranges_are_short() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == [[0, 2], [5, 5], [7, 8]]
    assert ranges([]) == []


def test_a_turn_of_many_calls_does_not_take_quadratic_time() -> None:
    messages = [user("a")]
    for index in range(20_000):
        messages += [assistant("", f"c{index}"), tool("r", f"c{index}")]
    started = time.perf_counter()
    assert len(Conversation(messages).turns) == 1
    assert time.perf_counter() - started < 2
