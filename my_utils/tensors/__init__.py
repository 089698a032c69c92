"""Hashes, statistics and comparisons of tensors, computed in C without a copy.

A tensor here is a ``torch.Tensor`` or ``Parameter`` of any dtype and strides, a numpy array, or
any object with the buffer protocol or ``__dlpack__``. Functions that take ``tensors`` give one
result for one tensor, and a list for a list or tuple. A DTensor stands for its local shard; lazily
conjugated or negated tensors are resolved first; on devices other than the CPU and CUDA a copy is
read; tensors without memory (meta, fake, sparse, quantized, nested) raise ``TypeError``, except
that ``assert_same`` compares the parts of sparse, quantized and nested ones. Nothing
here changes a tensor, its gradient, or the state of a random generator, and all of it may be called
from any thread.

=================== ==============================================================================
``assert_same``     an assertion, as `torch.testing.assert_close`; says where and how far
``bytes_sums``      what a run of bytes adds to the tensor hash of a whole
``compare``         how two tensors differ, and where
``differing_block`` the only block of 4 KiB in which two tensors differ, from their sums
``global_hash``     the tensor hash of a whole DTensor, without gathering it
``md5``             MD5 of the bytes, as ``hashlib`` has it, of many tensors side by side
``nan_inf_count``   how many NaNs and Infs there are, as fast as memory is read
``ReplicaWatch``    whether the replicas of a training still agree, every so many steps
``stats``           range, mean, deviation, norms and counts in one pass
``sums_digest``     the tensor hash of a whole from the sums of its parts
``tensor_hash``     128 bits at the speed of memory, the same on the CPU and on a GPU
``tensor_sums``     what any box of a tensor adds to the tensor hash of the whole
=================== ==============================================================================

>>> import numpy
>>> md5(numpy.zeros(0))
'd41d8cd98f00b204e9800998ecf8427e'
>>> md5([b"abc", numpy.arange(3)])[0]
'900150983cd24fb0d6963f7d28e17f72'
"""

from __future__ import annotations

from .._core import (
    NanInfCount,
    TensorDiff,
    TensorDigest,
    TensorStats,
    TensorSums,
    bytes_sums,
    compare,
    differing_block,
    md5,
    nan_inf_count,
    stats,
    sums_digest,
    tensor_hash,
    tensor_sums,
)
from ..core.lazy_names import lazy_names
from .dtensor import global_hash
from .passport.take import Passport, passport
from .same import assert_same

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .replicas.watch import ReplicaWatch as ReplicaWatch

__getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "NanInfCount",
    "Passport",
    "ReplicaWatch",
    "TensorDiff",
    "TensorDigest",
    "TensorStats",
    "TensorSums",
    "assert_same",
    "bytes_sums",
    "compare",
    "differing_block",
    "global_hash",
    "md5",
    "nan_inf_count",
    "passport",
    "stats",
    "sums_digest",
    "tensor_hash",
    "tensor_sums",
]
