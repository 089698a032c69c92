"""Importing this module registers the operators `torch.ops.my_utils.*`.

They are the functions of `my_utils.tensors` in a form that compiled and exported graphs can hold:
each stays one node, `torch.compile(fullgraph=True)` keeps the graph whole, and on a GPU the work is
enqueued on the current stream. Nothing is differentiated: results never require grad.

- `tensor_hash(Tensor x) -> Tensor`: int64 [2], the low and the high half of the content digest.
- `hash_into(Tensor x, Tensor(a!) out, int row) -> ()`: writes it to `out[row]`; `out` is a
  contiguous int64 tensor [rows, 2] on the device of `x`. A compiled graph never drops it.
- `stats(Tensor x) -> Tensor`: float64 [16] of the finite values: count, finite, min, max, mean, std
  (of a sample), l1, l2, abs_max, zeros, nans, pos_infs, neg_infs, first_nan, first_inf (row-major
  indices, -1 for none), 0.
- `nan_inf_count(Tensor x) -> Tensor`: int64 [3], how many NaN, +Inf and -Inf.

>>> import torch
>>> import my_utils.torch_ops
>>> torch.ops.my_utils.tensor_hash(torch.zeros(0)).shape
torch.Size([2])

RuntimeError on import where torch is older than 2.10.
"""

from .core.extras import needs_torch
from .tensors.torch_ops import register

with needs_torch("my_utils.torch_ops"):
    register()
