"""Runs instances: here in one process, each on meshes of its own."""

from mooncake_jax.cluster_config import ClusterConfig, HostPoolConfig, InstancesConfig, MeshShape
from mooncake_jax.runtime.build import build_cluster, cluster_meshes
from mooncake_jax.runtime.cluster import Cluster, Instances
from mooncake_jax.runtime.live import Stream
from mooncake_jax.runtime.warmup import warm_up

__all__ = [
    "Cluster",
    "ClusterConfig",
    "HostPoolConfig",
    "Instances",
    "InstancesConfig",
    "MeshShape",
    "Stream",
    "build_cluster",
    "cluster_meshes",
    "warm_up",
]
