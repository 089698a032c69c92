"""The barrier in etcd: its client, its rounds and its members."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .barrier_call import etcd_barrier
    from .rounds import EtcdBarrierBroken, EtcdBarrierError, EtcdBarrierTimeout

__all__ = ["EtcdBarrierBroken", "EtcdBarrierError", "EtcdBarrierTimeout", "etcd_barrier"]

__getattr__, __dir__ = lazy_names(
    __name__, __all__, "cluster.etcd.rounds", {"etcd_barrier": "cluster.etcd.barrier_call"}
)
