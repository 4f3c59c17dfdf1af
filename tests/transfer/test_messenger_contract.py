"""What every Messenger promises, on a clock that the tests move."""

import gc
import itertools
import weakref

import jax
import numpy as np
import pytest

from mooncake_jax.transfer import (
    DeviceMessenger,
    IllegalTransition,
    LinkConfig,
    Messenger,
    ThrottledMessenger,
    Transfer,
    TransferState,
)
from tests.transfer.units import DIM, HOST, LATE, LAYERS, ROWS, SOURCE, TARGET, drive, endpoint, kv, same_bits, unit, wire

SLOW = LinkConfig(bandwidth=1e4, latency=0.5)
MESSENGERS = {"device": DeviceMessenger, "throttled": lambda: ThrottledMessenger(DeviceMessenger(), SLOW)}
FAR = 1e6
"""A time at which every emulated link is through."""


@pytest.fixture(params=MESSENGERS)
def messenger(request) -> Messenger:
    return registered(MESSENGERS[request.param]())


def registered(messenger: Messenger) -> Messenger:
    messenger.register(TARGET, endpoint(wire(slice(4, 8))))
    messenger.register(HOST, endpoint())
    return messenger


def on_devices(x: np.ndarray | None = None) -> jax.Array:
    return jax.device_put(kv() if x is None else x, wire(slice(0, 2)))


def delivered(transfer: Transfer):
    """The unit, polled from time 0 until it is there."""
    assert drive(transfer, 0.0, 0.01) is TransferState.DONE, transfer.reason
    return transfer.take()


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", ["device", "pinned_host", "host"])
@pytest.mark.parametrize("source", ["two devices", "one device", "pinned_host", "numpy"])
def test_a_unit_arrives_bit_equal_where_its_target_wants_it(messenger, source, target, dtype):
    sharding = None if target == "host" else wire(slice(4, 8), target)
    messenger.register(TARGET, endpoint(sharding, dtype))
    x = kv(dtype=dtype)
    places = {
        "two devices": wire(slice(0, 2)),
        "one device": wire(slice(3, 4)),
        "pinned_host": wire(slice(0, 2), "pinned_host"),
    }
    sent = unit(x if source == "numpy" else jax.device_put(x, places[source]), first_layer=2)
    arrived = delivered(messenger.send(sent, TARGET, deadline=LATE))
    assert same_bits(arrived.kv, x)
    assert (arrived.request, arrived.source, arrived.layers, arrived.tokens) == (
        "request-7",
        SOURCE,
        range(2, 4),
        range(16, 24),
    )
    if sharding is None:
        assert isinstance(arrived.kv, np.ndarray)
    else:
        assert arrived.kv.sharding == sharding


@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
def test_what_is_still_being_computed_may_be_sent_and_send_does_not_wait(messenger, gate, to):
    x = on_devices()
    held = gate.hold(x)
    transfer = messenger.send(unit(held), to, deadline=LATE)
    assert not held.is_ready()
    for now in np.linspace(0.0, FAR, 20).tolist():
        assert transfer.poll(now) is TransferState.QUEUED
    assert transfer.started is None
    gate.open()
    assert drive(transfer, FAR, 0.01) is TransferState.DONE
    assert same_bits(transfer.take().kv, x)
    assert FAR <= transfer.started <= transfer.finished


@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
def test_a_failed_computation_fails_the_transfer_and_nothing_else(messenger, gate, to):
    transfer = messenger.send(unit(gate.hold(on_devices())), to, deadline=LATE)
    other = messenger.send(unit(on_devices()), to, deadline=LATE)
    gate.fail("the kernel broke")
    assert drive(transfer, 0.0, 0.01) is TransferState.FAILED
    assert "request-7" in transfer.reason
    assert str(SOURCE) in transfer.reason
    delivered(other)


def test_a_unit_may_be_padded_beyond_its_tokens(messenger):
    sent = unit(on_devices(), tokens=5)
    transfer = messenger.send(sent, TARGET, deadline=LATE)
    assert transfer.nbytes == sent.kv[:, :5].nbytes
    arrived = delivered(transfer)
    assert same_bits(arrived.kv[:, :5], kv()[:, :5])
    assert arrived.tokens == range(16, 21)


# --- ends -----------------------------------------------------------------------------------------------------------


def test_past_its_deadline_a_transfer_expires_and_never_delivers(messenger, gate):
    x = gate.hold(on_devices())
    transfer = messenger.send(unit(x), TARGET, deadline=5.0)
    assert transfer.poll(5.0) is TransferState.QUEUED
    assert transfer.poll(5.001) is TransferState.EXPIRED
    for word in ("request-7", str(SOURCE), str(TARGET)):
        assert word in transfer.reason
    assert transfer.finished == 5.001
    gate.open()
    jax.block_until_ready(x)
    assert transfer.poll(FAR) is TransferState.EXPIRED
    with pytest.raises(IllegalTransition, match="expired"):
        transfer.take()


def test_a_transfer_waiting_for_its_computation_can_be_cancelled(messenger, gate):
    transfer = messenger.send(unit(gate.hold(on_devices())), TARGET, deadline=LATE)
    transfer.poll(0.0)
    transfer.cancel(1.0)
    gate.open()
    assert transfer.poll(FAR) is TransferState.CANCELLED
    assert transfer.finished == 1.0
    with pytest.raises(IllegalTransition, match="cancelled"):
        transfer.take()


def test_a_transfer_nobody_has_polled_can_be_cancelled(messenger):
    transfer = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    transfer.cancel(1.0)
    transfer.cancel(2.0)
    assert (transfer.poll(FAR), transfer.finished) == (TransferState.CANCELLED, 1.0)


def test_cancelling_what_has_arrived_drops_it(messenger):
    transfer = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    drive(transfer, 0.0, 0.01)
    transfer.cancel(FAR)
    assert transfer.state is TransferState.DONE
    with pytest.raises(IllegalTransition, match="nothing to take"):
        transfer.take()


def test_cancelling_after_the_end_changes_nothing(messenger, gate):
    expired = messenger.send(unit(gate.hold(on_devices())), TARGET, deadline=1.0)
    assert expired.poll(2.0) is TransferState.EXPIRED
    failed = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    messenger.unregister(TARGET)
    assert failed.poll(2.0) is TransferState.FAILED
    for transfer in (expired, failed):
        before = (transfer.state, transfer.reason, transfer.finished)
        transfer.cancel(FAR)
        assert (transfer.state, transfer.reason, transfer.finished) == before


def test_a_unit_is_taken_once_and_only_when_it_is_there(messenger, gate):
    transfer = messenger.send(unit(gate.hold(on_devices())), TARGET, deadline=LATE)
    with pytest.raises(IllegalTransition, match="queued"):
        transfer.take()
    gate.open()
    delivered(transfer)
    with pytest.raises(IllegalTransition, match="nothing to take"):
        transfer.take()


def test_an_instance_that_was_never_registered_fails_the_transfer(messenger):
    messenger.unregister(TARGET)
    transfer = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    assert transfer.poll(0.0) is TransferState.FAILED
    assert str(TARGET) in transfer.reason


@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
@pytest.mark.parametrize("restarted", [False, True], ids=["dead", "restarted"])
def test_an_instance_that_dies_fails_what_is_on_its_way_to_it(messenger, gate, to, restarted):
    sharding = wire(slice(4, 8)) if to == TARGET else None
    pending = messenger.send(unit(gate.hold(on_devices())), to, deadline=LATE)
    unpolled = messenger.send(unit(on_devices()), to, deadline=LATE)
    pending.poll(0.0)
    messenger.unregister(to)
    if restarted:
        messenger.register(to, endpoint(sharding))
    for transfer in (pending, unpolled):
        assert transfer.poll(0.0) is TransferState.FAILED
        assert str(to) in transfer.reason
    gate.open()
    if restarted:
        delivered(messenger.send(unit(on_devices()), to, deadline=LATE))


def test_registering_again_replaces_the_endpoint(messenger):
    old = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    messenger.register(TARGET, endpoint(wire(slice(6, 8))))
    new = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    assert old.poll(0.0) is TransferState.FAILED
    assert delivered(new).kv.sharding == wire(slice(6, 8))


def test_what_arrived_before_its_instance_died_can_still_be_taken(messenger):
    transfer = messenger.send(unit(on_devices()), TARGET, deadline=LATE)
    drive(transfer, 0.0, 0.01)
    messenger.unregister(TARGET)
    assert transfer.poll(FAR) is TransferState.DONE
    assert same_bits(transfer.take().kv, kv())


# --- shapes ---------------------------------------------------------------------------------------------------------

MISFITS = {
    "rows": unit(kv(rows=ROWS // 2)),
    "dim": unit(kv()[..., :-1]),
    "dtype": unit(kv(dtype="bfloat16")),
    "more layers than the model": unit(kv(), first_layer=LAYERS - 1),
    "fewer tokens than named": unit(kv(tokens=4), tokens=5),
    "no layer axis": unit(kv()[0]),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
def test_a_unit_that_does_not_fit_is_refused_with_both_shapes(messenger, misfit, to):
    blocks = MISFITS[misfit]
    with pytest.raises(ValueError, match="request-7") as error:
        messenger.send(blocks, to, deadline=LATE)
    message = str(error.value)
    assert f"{list(blocks.kv.shape)} {blocks.kv.dtype}" in message
    assert f"[{LAYERS} layers, tokens, {ROWS}, {DIM}] float32" in message
    assert str(to) in message


def test_layers_that_are_not_as_many_as_the_bytes_are_refused(messenger):
    blocks = unit(kv(layers=3))
    object.__setattr__(blocks, "layers", range(2))
    with pytest.raises(ValueError, match="layers 0 to 2"):
        messenger.send(blocks, TARGET, deadline=LATE)


# --- books ----------------------------------------------------------------------------------------------------------


def test_ids_are_unique_in_the_process():
    ids = []
    for make in [*MESSENGERS.values()] * 2:
        messenger = registered(make())
        ids += [messenger.send(unit(kv()), to, deadline=LATE).id for to in (TARGET, HOST, TARGET)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
@pytest.mark.parametrize("end", ["done", "expired", "cancelled", "failed"])
def test_after_its_end_a_transfer_holds_none_of_the_source_bytes(messenger, gate, end, to):
    x = gate.hold(on_devices())
    source = weakref.ref(x)
    transfer = messenger.send(unit(x), to, deadline=LATE if end != "expired" else -1.0)
    if end == "cancelled":
        transfer.cancel(0.0)
    elif end == "failed":
        messenger.unregister(to)
    elif end == "done":
        gate.open()
    assert drive(transfer, 0.0, 0.01) == end
    gate.open()
    jax.block_until_ready(x)
    del x
    gc.collect()
    assert source() is None


@pytest.mark.parametrize("to", [TARGET, HOST], ids=str)
def test_after_take_a_transfer_holds_none_of_the_bytes_that_arrived(messenger, to):
    transfer = messenger.send(unit(on_devices()), to, deadline=LATE)
    arrived = weakref.ref(delivered(transfer).kv)
    gc.collect()
    assert arrived() is None
    assert transfer.state is TransferState.DONE


LEGAL = {
    ("queued", "moving"),
    ("queued", "failed"),
    ("queued", "expired"),
    ("queued", "cancelled"),
    ("moving", "done"),
    ("moving", "failed"),
    ("moving", "expired"),
    ("moving", "cancelled"),
}


@pytest.mark.parametrize(("before", "after"), itertools.product(TransferState, TransferState))
def test_only_the_transitions_of_the_table_are_legal(before, after):
    transfer = Transfer(1, unit(kv()), TARGET, LATE)
    transfer.state = before
    if (before, after) in LEGAL:
        transfer._move(after, 3.0)
        assert transfer.state is after
        assert (transfer.started, transfer.finished) == ((3.0, None) if after == "moving" else (None, 3.0))
    else:
        with pytest.raises(IllegalTransition, match=f"transfer 1 to {TARGET}: {before} → {after}"):
            transfer._move(after, 3.0)
