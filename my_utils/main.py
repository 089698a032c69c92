"""`ProfCallback` under the name that users of `edd_utils.main` know.

>>> from my_utils.main import ProfCallback  # doctest: +SKIP
"""

from .torch_profiler.trainer_callback import ProfCallback

__all__ = ["ProfCallback"]
