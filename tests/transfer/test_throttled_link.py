"""The emulated network: when units arrive, who shares a link, what fails."""

import dataclasses

import jax
import numpy as np
import pytest

from mooncake_jax.errors import UserError
from mooncake_jax.transfer import DeviceMessenger, LinkConfig, ThrottledMessenger, Transfer, TransferState
from mooncake_jax.types import InstanceId, Role
from tests.transfer.units import HOST, LATE, SOURCE, TARGET, drive, endpoint, kv, unit, wire

OTHER = InstanceId(Role.PREFILL, 5)


def network(bandwidth: float = float("inf"), latency: float = 0.0, failure_rate: float = 0.0, seed: int = 0):
    messenger = ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth, latency, failure_rate, seed))
    messenger.register(HOST, endpoint())
    messenger.register(TARGET, endpoint(wire(slice(4, 8))))
    return messenger


def send(
    messenger: ThrottledMessenger, source: InstanceId = SOURCE, tokens: int | None = None, deadline: float = LATE
) -> Transfer:
    return messenger.send(unit(kv(), source=source, tokens=tokens), HOST, deadline=deadline)


def assert_arrives(transfer: Transfer, at: float) -> None:
    assert transfer.poll(at - 1e-6) is TransferState.MOVING
    assert transfer.poll(at + 1e-6) is TransferState.DONE


def test_a_unit_arrives_when_its_bytes_and_the_latency_have_passed():
    transfer = send(network(bandwidth=1000.0, latency=0.25))
    seconds = kv().nbytes / 1000.0
    assert transfer.poll(10.0) is TransferState.MOVING
    assert_arrives(transfer, 10.0 + seconds + 0.25)
    assert (transfer.started, transfer.finished) == (10.0, pytest.approx(10.0 + seconds + 0.25, abs=1e-5))


def test_the_way_begins_when_the_bytes_have_been_computed(gate):
    messenger = network(bandwidth=1000.0)
    x = gate.hold(jax.device_put(kv(), wire(slice(0, 2))))
    late, early = messenger.send(unit(x), TARGET, deadline=LATE), send(messenger)
    assert [late.poll(0.0), early.poll(1.0)] == [TransferState.QUEUED, TransferState.MOVING]
    assert_arrives(early, 1.0 + kv().nbytes / 1000.0)  # it does not wait behind what was sent before it
    gate.open()
    jax.block_until_ready(x)
    while late.poll(50.0) is TransferState.QUEUED:
        pass
    assert late.poll(50.0 + kv().nbytes / 1000.0 - 1e-6) is TransferState.MOVING
    assert drive(late, 50.0 + kv().nbytes / 1000.0) is TransferState.DONE


def test_a_fast_network_waits_for_the_bytes_themselves(gate):
    x = gate.hold(jax.device_put(kv(), wire(slice(0, 2))))
    transfer = network().send(unit(x), TARGET, deadline=LATE)
    assert transfer.poll(1e6) is TransferState.QUEUED
    gate.open()
    assert drive(transfer, 1e6) is TransferState.DONE


def test_units_of_one_source_pass_one_after_another_and_share_no_latency():
    messenger = network(bandwidth=1000.0, latency=0.5)
    seconds = kv().nbytes / 1000.0
    transfers = [send(messenger) for _ in range(3)]
    for transfer in transfers:
        transfer.poll(2.0)
    for i, transfer in enumerate(transfers):
        assert_arrives(transfer, 2.0 + (i + 1) * seconds + 0.5)


def test_sources_do_not_share_a_link():
    messenger = network(bandwidth=1000.0)
    transfers = [send(messenger, source) for source in (SOURCE, OTHER)]
    for transfer in transfers:
        transfer.poll(0.0)
    for transfer in transfers:
        assert_arrives(transfer, kv().nbytes / 1000.0)


def test_an_idle_link_saves_no_time_up():
    messenger = network(bandwidth=1000.0)
    for start in (0.0, 100.0):
        transfer = send(messenger)
        transfer.poll(start)
        assert_arrives(transfer, start + kv().nbytes / 1000.0)


def test_padding_is_not_charged():
    transfer = send(network(bandwidth=1000.0), tokens=2)
    transfer.poll(0.0)
    assert_arrives(transfer, kv()[:, :2].nbytes / 1000.0)


@pytest.mark.parametrize("how", ["cancelled", "expired", "unregistered"])
def test_units_that_are_given_up_leave_the_link_to_those_behind_them(how):
    messenger = network(bandwidth=1000.0)
    seconds = kv().nbytes / 1000.0
    first = send(messenger)
    gone = [send(messenger, deadline=0.5) for _ in range(20)]
    if how == "unregistered":
        gone = [messenger.send(unit(kv()), TARGET, deadline=LATE) for _ in range(20)]
    last = send(messenger)
    for transfer in (first, *gone, last):
        transfer.poll(0.0)
    if how == "cancelled":
        for transfer in gone:
            transfer.cancel(seconds / 2)
    elif how == "unregistered":
        messenger.unregister(TARGET)
    for transfer in gone:
        assert transfer.poll(0.6).terminal
    assert_arrives(first, seconds)
    assert_arrives(last, 2 * seconds)


def test_half_a_unit_that_left_before_it_was_given_up_has_used_the_link():
    messenger = network(bandwidth=1000.0)
    seconds = kv().nbytes / 1000.0
    first, second, third = (send(messenger) for _ in range(3))
    for transfer in (first, second, third):
        transfer.poll(0.0)
    first.cancel(seconds / 2)
    assert_arrives(second, 1.5 * seconds)
    second.cancel(9.0)
    assert_arrives(third, 2.5 * seconds)


@pytest.mark.parametrize("restarted", [False, True])
def test_bytes_under_way_on_the_emulated_link_do_not_reach_an_instance_that_died(restarted):
    messenger = network(bandwidth=1000.0)
    transfer = send(messenger)
    for _ in range(5):
        assert transfer.poll(0.0) is TransferState.MOVING  # the real bytes have long landed
    messenger.unregister(HOST)
    if restarted:
        messenger.register(HOST, endpoint())
    assert transfer.poll(1.0) is TransferState.FAILED
    assert str(HOST) in transfer.reason


def test_a_unit_too_slow_for_its_deadline_expires():
    transfer = send(network(bandwidth=1000.0), deadline=0.5)
    assert transfer.poll(0.0) is TransferState.MOVING
    assert transfer.poll(0.6) is TransferState.EXPIRED
    assert transfer.poll(100.0) is TransferState.EXPIRED


def test_a_moving_unit_can_be_cancelled():
    transfer = send(network(bandwidth=1000.0))
    assert transfer.poll(0.0) is TransferState.MOVING
    transfer.cancel(0.1)
    assert transfer.poll(100.0) is TransferState.CANCELLED


def test_at_failure_rate_1_every_unit_fails_after_its_time_with_the_link_named():
    messenger = network(bandwidth=1000.0, failure_rate=1.0)
    for source in [SOURCE, OTHER] * 5:
        transfer = send(messenger, source)
        assert transfer.poll(100.0) is TransferState.MOVING
        assert transfer.poll(200.0) is TransferState.FAILED
        assert f"{source} → {HOST}" in transfer.reason


def failures(seed: int) -> list[bool]:
    messenger = network(failure_rate=0.5, seed=seed)
    return [drive(send(messenger)) is TransferState.FAILED for _ in range(64)]


def test_the_seed_decides_which_units_fail():
    first = failures(1)
    assert first == failures(1)
    assert first != failures(2)
    assert 16 < sum(first) < 48


def test_at_failure_rate_0_nothing_fails():
    messenger = network()
    assert all(drive(send(messenger)) is TransferState.DONE for _ in range(64))


@pytest.mark.parametrize(
    "wrong", [{"bandwidth": 0.0}, {"bandwidth": -1.0}, {"latency": -0.1}, {"failure_rate": 1.5}, {"failure_rate": -0.1}]
)
def test_a_network_that_cannot_be_is_the_users_mistake(wrong):
    (value,) = wrong.values()
    with pytest.raises(UserError, match=str(value)):
        dataclasses.replace(LinkConfig(), **wrong)


def test_bytes_are_those_of_the_network_below():
    transfer = send(network(bandwidth=1000.0))
    drive(transfer, 0.0, 0.1)
    assert np.array_equal(transfer.take().kv, kv(), equal_nan=True)
