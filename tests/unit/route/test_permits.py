"""A permit is good once, here, soon, for one payload and one destination; and for nothing else."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.errors import IntegrityError
from edgewise.route.destinations import Basis, Destination, Price
from edgewise.route.permits import PERMIT_LIFETIME_S, CloudPermit, PermitOffice, _elapsed_s

FAR = Destination(name="far", url="https://far.example/v1", model="m", basis=Basis.CONSENT)
BODY = b'{"messages":[]}'
REPLACED: dict[str, Any] = {
    "permit_id": "0" * 32,
    "destination": "near",
    "origin": "https://near.example:443",
    "destination_sha256": "0" * 64,
    "payload_sha256": "0" * 64,
    "expires_s": 1e12,
    "consent": "grant-2",
    "seal": b"\0" * 32,
}
PRICE = Price(currency="EUR", input_per_million=1, output_per_million=1, daily_limit=1)
OTHER_ENTRY: dict[str, Any] = {
    "url": "https://far.example/v2",
    "model": "n",
    "purpose": "another",
    "region": "elsewhere",
    "retention_days": 3,
    "basis": Basis.CONTRACT,
    "secret": "another",
    "timeout_s": 1.0,
    "connect_timeout_s": 1.0,
    "retries": 0,
    "idempotent": True,
    "ca_file": "/other.pem",
    "proxy": "http://proxy.example:3128",
    "max_tokens_field": "max_completion_tokens",
    "price": PRICE,
}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def why(office: PermitOffice, permit: Any, place: Destination = FAR, body: bytes = BODY) -> str:
    """Return why a permit is refused."""
    with pytest.raises(IntegrityError) as caught:
        office.gate.redeem(permit, place, body)
    assert caught.value.code == "permit-refused"
    assert caught.value.hint
    return str(caught.value.context["why"])


def test_a_permit_is_good_once() -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY, consent="grant-1")
    office.gate.redeem(permit, FAR, BODY)
    assert why(office, permit) == "replayed"
    assert permit.consent == "grant-1"
    assert permit.origin == "https://far.example:443"


def test_every_field_is_replaced_below() -> None:
    assert set(REPLACED) == set(CloudPermit.__struct_fields__)
    assert set(OTHER_ENTRY) == set(Destination.__struct_fields__) - {"name"}


@pytest.mark.parametrize("field", REPLACED)
def test_a_permit_that_was_altered_in_one_field(field: str) -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY, consent="grant-1")
    altered = msgspec.structs.replace(permit, **{field: REPLACED[field]})
    assert why(office, altered) == "altered"
    office.gate.redeem(permit, FAR, BODY)  # what a forger shows takes nothing from its owner


@pytest.mark.parametrize("field", REPLACED)
@pytest.mark.parametrize("value", [None, 3, float("nan"), float("inf"), "x", b"x", [], object()])
def test_a_permit_that_holds_what_it_cannot(field: str, value: Any) -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY)
    assert why(office, msgspec.structs.replace(permit, **{field: value})) == "altered"


@pytest.mark.parametrize("value", [None, 3, "permit", {}, BODY])
def test_what_is_no_permit(value: Any) -> None:
    assert why(PermitOffice(), value) == "altered"


def test_a_permit_of_a_kind_of_its_own() -> None:
    class Loose(CloudPermit, frozen=True, kw_only=True):
        pass

    office = PermitOffice()
    told = msgspec.structs.asdict(office.mint(FAR, BODY))
    assert why(office, Loose(**told)) == "altered"


@pytest.mark.parametrize("field", OTHER_ENTRY)
def test_another_destination_with_the_same_name(field: str) -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY)
    other = msgspec.structs.replace(FAR, **{field: OTHER_ENTRY[field]})
    assert why(office, permit, other) == "destination"
    assert why(office, permit) == "replayed"  # it is used up all the same


def test_another_name_for_the_same_address() -> None:
    office = PermitOffice()
    other = msgspec.structs.replace(FAR, name="near")
    assert why(office, office.mint(FAR, BODY), other) == "destination"


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes(body: bytes) -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY)
    if body == BODY:
        office.gate.redeem(permit, FAR, body)
    else:
        assert why(office, permit, FAR, body) == "payload"
        assert why(office, permit) == "replayed"


def test_a_permit_expires() -> None:
    clock = Clock()
    office = PermitOffice(clock=clock)
    first, second = office.mint(FAR, BODY), office.mint(FAR, BODY)
    clock.now += PERMIT_LIFETIME_S - 0.001
    office.gate.redeem(first, FAR, BODY)
    clock.now += 0.001
    assert why(office, second) == "expired"


def test_used_and_expired_permits_are_forgotten() -> None:
    clock = Clock()
    office = PermitOffice(clock=clock)
    for _ in range(100):
        office.mint(FAR, BODY)
    clock.now += PERMIT_LIFETIME_S
    office.mint(FAR, BODY)
    assert len(office._open) == 1


def test_the_clock_goes_forward() -> None:
    readings = [_elapsed_s() for _ in range(100)]
    assert readings == sorted(readings)


def test_a_copy_is_the_same_permit() -> None:
    for again in (
        lambda permit: pickle.loads(pickle.dumps(permit)),
        copy.deepcopy,
        lambda permit: msgspec.json.decode(msgspec.json.encode(permit), type=CloudPermit),
    ):
        office = PermitOffice()
        permit = office.mint(FAR, BODY)
        office.gate.redeem(again(permit), FAR, BODY)
        assert why(office, permit) == "replayed"


def test_another_office_does_not_know_it() -> None:
    assert why(PermitOffice(), PermitOffice().mint(FAR, BODY)) == "altered"


def test_many_threads_redeem_it_once() -> None:
    office = PermitOffice()
    barrier = threading.Barrier(16)

    def redeem(permit: CloudPermit) -> str:
        barrier.wait()
        try:
            office.gate.redeem(permit, FAR, BODY)
        except IntegrityError as error:
            return str(error.context["why"])
        return "used"

    with ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            permit = office.mint(FAR, BODY)
            said = sorted(pool.map(redeem, [permit] * 16))
            assert said == ["replayed"] * 15 + ["used"]


def _redeem_elsewhere(data: bytes, results: Any) -> None:
    permit = pickle.loads(data)
    results.put(why(PermitOffice(), permit))


def test_another_process_does_not_take_it() -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    worker = context.Process(target=_redeem_elsewhere, args=(pickle.dumps(permit), results))
    worker.start()
    assert results.get(timeout=60) == "altered"
    worker.join(60)
    office.gate.redeem(permit, FAR, BODY)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_takes_no_permit_along() -> None:
    office = PermitOffice()
    permit = office.mint(FAR, BODY)
    office._lock.acquire()  # as where another thread holds it while this one forks
    coming, going = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads of other tests may still run; this one needs none
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # a lock that was taken along would hold it for ever
        try:
            old = why(office, permit)
            office.gate.redeem(office.mint(FAR, BODY), FAR, BODY)
            os.write(going, json.dumps(old).encode())
        finally:
            os._exit(0)
    office._lock.release()
    os.close(going)
    said = os.read(coming, 100)
    os.waitpid(child, 0)
    os.close(coming)
    assert json.loads(said) == "altered"
    office.gate.redeem(permit, FAR, BODY)


def test_the_gate_has_no_way_to_mint() -> None:
    names = {name for name in dir(PermitOffice().gate) if not name.startswith("_")}
    assert names == {"redeem"}


def test_offices_are_not_kept_alive_by_what_watches_forks() -> None:
    import gc
    import weakref

    office = PermitOffice()
    seen = weakref.ref(office)
    del office
    gc.collect()
    assert seen() is None
