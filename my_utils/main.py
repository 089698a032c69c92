"""`ProfCallback` under the import path of `edd_utils.main`.

>>> from my_utils.main import ProfCallback  # doctest: +SKIP
"""

from .profilers.torch_profiler.trainer_callback import ProfCallback

__all__ = ["ProfCallback"]
