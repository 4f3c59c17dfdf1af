"""The Conductor and its policies: pairing, decode choice, admission, replication, roles, estimators. Pure Python and numpy."""

from mooncake_jax.sched.admission import (
    AcceptAll,
    AdmissionPolicy,
    DecodeAdmission,
    EarlyRejection,
    LoadPolicy,
    Prediction,
    StageByStage,
)
from mooncake_jax.sched.conductor import Conductor, Learning
from mooncake_jax.sched.current_load import CurrentLoad
from mooncake_jax.sched.decision import Decision, RecordedMatch, redecide
from mooncake_jax.sched.decode import DecodeChoice, DecodePolicy, LeastTokens
from mooncake_jax.sched.estimator import ClosedForm, DecodeLine, Estimator, HardwareModel
from mooncake_jax.sched.fit import DecodeSample, PrefillSample, TransferSample
from mooncake_jax.sched.measured import Measured, RelativeError
from mooncake_jax.sched.pairing import CacheAware, KVCacheCentric, LoadBalance, Pairing, PairingPolicy, Random, RoundRobin
from mooncake_jax.sched.prediction import Predictive, predict_decode_tbt
from mooncake_jax.sched.profiles import Chip, ModelShape, Node
from mooncake_jax.sched.queue_order import CacheAwareReorder, FirstCome, QueuedPrefill, QueueOrder, ShortestFirst
from mooncake_jax.sched.regression import Regression
from mooncake_jax.sched.replication import Copy, Drop, HotReplicas, NoReplication, ReplicationPolicy
from mooncake_jax.sched.roles import FixedRoles, LoadRoles, RolePolicy, Switch
from mooncake_jax.sched.roofline import Roofline
from mooncake_jax.sched.samples import HeldOutError, Sample, held_out_error, read_samples, write_samples
from mooncake_jax.sched.steadying import Damping, Hysteresis
from mooncake_jax.sched.view import ClusterView, InFlight, PrefixLookup

__all__ = [
    "AcceptAll",
    "AdmissionPolicy",
    "CacheAware",
    "CacheAwareReorder",
    "Chip",
    "ClosedForm",
    "ClusterView",
    "Conductor",
    "Copy",
    "CurrentLoad",
    "Damping",
    "Decision",
    "DecodeAdmission",
    "DecodeChoice",
    "DecodeLine",
    "DecodePolicy",
    "DecodeSample",
    "Drop",
    "EarlyRejection",
    "Estimator",
    "FirstCome",
    "FixedRoles",
    "HardwareModel",
    "HeldOutError",
    "HotReplicas",
    "Hysteresis",
    "InFlight",
    "KVCacheCentric",
    "Learning",
    "LeastTokens",
    "LoadBalance",
    "LoadPolicy",
    "LoadRoles",
    "Measured",
    "ModelShape",
    "NoReplication",
    "Node",
    "Pairing",
    "PairingPolicy",
    "Prediction",
    "Predictive",
    "PrefillSample",
    "PrefixLookup",
    "QueueOrder",
    "QueuedPrefill",
    "Random",
    "RecordedMatch",
    "Regression",
    "RelativeError",
    "ReplicationPolicy",
    "RolePolicy",
    "Roofline",
    "RoundRobin",
    "Sample",
    "ShortestFirst",
    "StageByStage",
    "Switch",
    "TransferSample",
    "held_out_error",
    "predict_decode_tbt",
    "read_samples",
    "redecide",
    "write_samples",
]
