"""Moving KV: the Messenger protocol, its implementations, and where bytes lie."""

from mooncake_jax.transfer.delivery import Delivery
from mooncake_jax.transfer.device import HEADS_AXIS, DeviceMessenger
from mooncake_jax.transfer.host_pool import HostPool
from mooncake_jax.transfer.messenger import Endpoint, IllegalTransition, KVBlocks, Messenger, Transfer, TransferState
from mooncake_jax.transfer.reshard import reshard
from mooncake_jax.transfer.throttled import LinkConfig, ThrottledMessenger

__all__ = [
    "HEADS_AXIS",
    "Delivery",
    "DeviceMessenger",
    "Endpoint",
    "HostPool",
    "IllegalTransition",
    "KVBlocks",
    "LinkConfig",
    "Messenger",
    "ThrottledMessenger",
    "Transfer",
    "TransferState",
    "reshard",
]
