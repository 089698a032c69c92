"""Facts about tensors, computed in C on the bytes where they lie.

A tensor here is a ``torch.Tensor`` or ``Parameter`` of any dtype and strides, a numpy array, or
any object with the buffer protocol or ``__dlpack__``. Functions that take ``tensors`` give one
result for one tensor, and a list for a list or tuple. A DTensor stands for its local shard; lazily
conjugated or negated tensors are resolved first; tensors without memory (meta, fake, sparse,
quantized, nested) raise ``TypeError``. Nothing here changes a tensor, its gradient, or the state of
a random generator, and all of it may be called from any thread.
"""

from __future__ import annotations

from ._core import TensorDiff, TensorDigest, compare, tensor_hash

__all__ = [
    "TensorDiff",
    "TensorDigest",
    "compare",
    "tensor_hash",
]
