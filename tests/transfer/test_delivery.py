"""A unit that is sent again until it arrives, over a network that really fails."""

import gc
import weakref

import jax
import numpy as np
import pytest

from mooncake_jax.transfer import Delivery, DeviceMessenger, IllegalTransition, LinkConfig, ThrottledMessenger, TransferState
from tests.transfer.units import HOST, LATE, TARGET, drive, endpoint, kv, same_bits, unit, wire


def network(failure_rate: float = 0.0, seed: int = 0, bandwidth: float = float("inf")) -> ThrottledMessenger:
    messenger = ThrottledMessenger(DeviceMessenger(), LinkConfig(bandwidth, 0.0, failure_rate, seed))
    messenger.register(HOST, endpoint())
    messenger.register(TARGET, endpoint(wire(slice(4, 8))))
    return messenger


def test_a_unit_that_arrives_at_once_has_not_failed():
    delivery = Delivery(network(), unit(kv()), TARGET, deadline=LATE)
    assert drive(delivery) is TransferState.DONE
    assert delivery.failures == 0
    assert same_bits(delivery.take().kv, kv())
    with pytest.raises(IllegalTransition, match="nothing to take"):
        delivery.take()


@pytest.mark.parametrize("tries", [1, 3, 5])
def test_it_fails_when_the_tries_are_used_up(tries):
    delivery = Delivery(network(failure_rate=1.0), unit(kv()), TARGET, deadline=LATE, tries=tries)
    for failed in range(1, tries):
        assert delivery.poll(0.0) is not TransferState.FAILED
        while delivery.failures < failed:
            delivery.poll(0.0)
    assert drive(delivery) is TransferState.FAILED
    assert delivery.failures == tries
    assert "injected failure" in delivery.reason
    assert delivery.poll(1.0) is TransferState.FAILED
    assert delivery.failures == tries
    with pytest.raises(IllegalTransition):
        delivery.take()


def test_it_arrives_bit_equal_after_failures():
    seen = set()
    for seed in range(24):
        delivery = Delivery(network(failure_rate=0.5, seed=seed), unit(kv(seed=seed)), TARGET, deadline=LATE)
        if drive(delivery) is TransferState.DONE:
            assert delivery.failures in (0, 1, 2)
            assert same_bits(delivery.take().kv, kv(seed=seed))
        else:
            assert delivery.failures == 3
        seen.add(delivery.failures)
    assert seen == {0, 1, 2, 3}


def test_an_instance_that_is_restarted_in_time_still_gets_it(gate):
    messenger = network()
    x = gate.hold(jax.device_put(kv(), wire(slice(0, 2))))
    delivery = Delivery(messenger, unit(x), TARGET, deadline=LATE)
    messenger.unregister(TARGET)
    messenger.register(TARGET, endpoint(wire(slice(6, 8))))
    assert not delivery.poll(0.0).terminal
    gate.open()
    assert drive(delivery) is TransferState.DONE
    assert delivery.failures == 1
    assert delivery.take().kv.sharding == wire(slice(6, 8))


def test_a_dead_instance_uses_up_the_tries():
    messenger = network()
    messenger.unregister(TARGET)
    delivery = Delivery(messenger, unit(kv()), TARGET, deadline=LATE)
    assert drive(delivery) is TransferState.FAILED
    assert delivery.failures == 3
    assert str(TARGET) in delivery.reason


def test_tries_share_one_deadline():
    delivery = Delivery(network(failure_rate=1.0, bandwidth=1000.0), unit(kv()), HOST, deadline=2.5, tries=100)
    assert drive(delivery, 0.0, 0.1) is TransferState.EXPIRED
    assert delivery.failures == 1  # a try takes 1.5 s


def test_the_source_bytes_are_kept_until_it_has_arrived_and_no_longer():
    assert kv().nbytes / 1000.0 == pytest.approx(1.536)
    delivery = Delivery(network(bandwidth=1000.0), unit(x := jax.device_put(kv(), wire(slice(0, 2)))), TARGET, deadline=LATE)
    source = weakref.ref(x)
    del x
    delivery.poll(0.0)
    gc.collect()
    assert source() is not None
    drive(delivery, 10.0)
    gc.collect()
    assert source() is None


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired"])
def test_the_source_bytes_are_let_go_however_it_ends(end):
    messenger = network(failure_rate=1.0 if end == "failed" else 0.0, bandwidth=1000.0)
    x = jax.device_put(kv(), wire(slice(0, 2)))
    source = weakref.ref(x)
    delivery = Delivery(messenger, unit(x), TARGET, deadline=1.0 if end == "expired" else LATE)
    del x
    delivery.poll(0.0)
    if end == "cancelled":
        delivery.cancel(0.1)
    assert drive(delivery, 0.0, 0.2) == end
    gc.collect()
    assert source() is None


def test_a_cancelled_delivery_is_not_sent_again():
    messenger = network(failure_rate=1.0)
    delivery = Delivery(messenger, unit(kv()), TARGET, deadline=LATE)
    delivery.cancel(0.0)
    assert [delivery.poll(float(now)) for now in range(3)] == [TransferState.CANCELLED] * 3
    assert delivery.failures == 0


def test_it_tells_how_long_its_last_try_was_under_way():
    delivery = Delivery(network(bandwidth=1000.0), unit(kv()), HOST, deadline=LATE)
    delivery.poll(3.0)
    assert delivery.moving_s is None
    assert delivery.poll(5.0) is TransferState.DONE
    assert delivery.moving_s == pytest.approx(2.0)


def test_it_says_what_it_carries():
    sent = unit(np.asarray(kv(tokens=8)), first_layer=1, tokens=6)
    delivery = Delivery(network(), sent, TARGET, deadline=LATE)
    assert (delivery.to, delivery.layers, delivery.tokens, delivery.nbytes) == (TARGET, range(1, 3), range(16, 22), sent.nbytes)
