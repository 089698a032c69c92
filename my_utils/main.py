"""`ProfCallback` under the name that users of `edd_utils.main` know.

>>> from my_utils.main import ProfCallback  # doctest: +SKIP
"""

from .profiling.trainer_callback import ProfCallback

__all__ = ["ProfCallback"]
