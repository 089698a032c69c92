"""Compatibility module; the code is in `my_utils.cluster.etcd`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster.etcd import EtcdBarrierBroken, EtcdBarrierError, EtcdBarrierTimeout, etcd_barrier

__all__ = ["EtcdBarrierBroken", "EtcdBarrierError", "EtcdBarrierTimeout", "etcd_barrier"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "cluster.etcd")
