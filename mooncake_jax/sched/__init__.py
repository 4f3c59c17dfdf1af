"""The Conductor and its policies: pairing, decode choice, admission, estimators. Pure Python and numpy."""

from mooncake_jax.sched.admission import AcceptAll, AdmissionPolicy, EarlyRejection
from mooncake_jax.sched.conductor import Conductor
from mooncake_jax.sched.decision import Decision, RecordedMatch
from mooncake_jax.sched.decode import DecodeChoice, DecodePolicy, LeastTokens
from mooncake_jax.sched.estimator import ClosedForm, Estimator
from mooncake_jax.sched.fit import DecodeSample, PrefillSample, TransferSample
from mooncake_jax.sched.measured import Measured, RelativeError
from mooncake_jax.sched.pairing import CacheAware, KVCacheCentric, LoadBalance, Pairing, PairingPolicy, Random, RoundRobin
from mooncake_jax.sched.view import ClusterView, PrefixLookup

__all__ = [
    "AcceptAll",
    "AdmissionPolicy",
    "CacheAware",
    "ClosedForm",
    "ClusterView",
    "Conductor",
    "Decision",
    "DecodeChoice",
    "DecodePolicy",
    "DecodeSample",
    "EarlyRejection",
    "Estimator",
    "KVCacheCentric",
    "LeastTokens",
    "LoadBalance",
    "Measured",
    "Pairing",
    "PairingPolicy",
    "PrefillSample",
    "PrefixLookup",
    "Random",
    "RecordedMatch",
    "RelativeError",
    "RoundRobin",
    "TransferSample",
]
