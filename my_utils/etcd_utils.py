"""Compatibility module; the code is in `my_utils.cluster.etcd`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster.etcd.barrier_call import etcd_barrier
    from .cluster.etcd.rounds import EtcdBarrierBroken, EtcdBarrierError, EtcdBarrierTimeout

__all__ = ["EtcdBarrierBroken", "EtcdBarrierError", "EtcdBarrierTimeout", "etcd_barrier"]

__getattr__, __dir__ = lazy_names(__name__)
