"""A plugin of pytest for tensors and stage times.

pytest finds it by itself where my_utils is installed. docs/correctness/pytest.md has its fixtures,
markers and options; all that it adds begins with `--my-utils-` or `my_utils_`, but for the fixtures
`tensor_golden` and `stage_times`, and it does nothing before a test asks for it.

================ =============================================================
``TensorGolden`` what the fixture `tensor_golden` is; fixtures make their own
``StageTimes``   what the fixture `stage_times` is
================ =============================================================

>>> import pytest
>>> @pytest.fixture(scope="module")
... def weights(request):
...     weights = {"bias": [0.0, 1.0]}
...     TensorGolden(request)(weights, "weights")
...     return weights
"""

from __future__ import annotations

from ..core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .golden import TensorGolden
    from .stage_times import StageTimes

__all__ = ["StageTimes", "TensorGolden"]

__getattr__, __dir__ = lazy_names(__name__)
