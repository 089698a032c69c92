"""Records the stages of a training with the `Trainer` of transformers or Lightning.

>>> from my_utils.run.callback import TimerCallback
>>> TimerCallback("logs/train")
TimerCallback('logs/train')
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..core.arguments import check_path
from ..core.ranks import current_rank, world_size
from ..core.trainer_callbacks import new_callback
from ..record.log.logger import GlobalLogger

if TYPE_CHECKING:
    from .stages.recorder import Recorder

__all__ = ["TimerCallback"]


class TimerCallback:
    """Records the stages of a training run, as `my_utils run` does, from its beginning to its end.

    log_dir: where the files go, unless GlobalLogger was set up before.

    Import transformers or Lightning first. TypeError if it is not a path. The methods run on the
    training thread.
    """

    def __new__(cls, log_dir: str | os.PathLike[str] = "logs") -> Any:
        return new_callback(cls)

    def __init__(self, log_dir: str | os.PathLike[str] = "logs") -> None:
        self.log_dir = check_path("log_dir", log_dir)
        self._recorder: Recorder | None = None

    def __repr__(self) -> str:
        return f"TimerCallback({os.fspath(self.log_dir)!r})"

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Called by transformers."""
        self._begin()

    def on_train_start(self, *args: Any, **kwargs: Any) -> None:
        """Called by Lightning."""
        self._begin()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Called by both."""
        if self._recorder is not None:
            self._recorder.disarm()
            self._recorder = None

    def _begin(self) -> None:
        from .stages.recorder import arm

        self._recorder = arm(self._set_up)

    def _set_up(self) -> None:
        logger = GlobalLogger()
        if not logger.is_set_up:
            logger.setup(self.log_dir, rank=current_rank(), world_size=world_size(), console=False)
