"""`ReplicaWatch`: checks of replicas for a training script, also as a callback of its trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.arguments import wrong_type
from ...core.trainer_callbacks import new_callback
from .checks import ReplicaChecks, find_models
from .replayed import Replayed


class ReplicaWatch(ReplicaChecks):
    """Hashes what other ranks must have equal, so that a replica that drifts is found and named.

    Each rank leaves the sums of its tensors in the folder `replicas` of the run; `my_utils why`,
    `my_utils live` and the end of `my_utils run` compare them. No rank sends anything to another
    one or waits for it, and on a GPU the hash is work of the current stream. A check is the stage
    `replicas`.

    model: a module, or modules by name. It may be the one that DDP wraps, or the wrapper. None
        only for a callback of a trainer, which says its model. The watch does not keep it alive,
        and ends with it.
    every: how many steps are between two checks. The first step is checked, too.
    optimizer: whose states of the parameters are checked, too; None checks none.
    gradients: whether gradients are checked, too. `step` must then come before `zero_grad`.
    log_dir: where the files go, unless GlobalLogger was set up before.
    timer: which times the checks; None makes one.

    Which tensors are compared with which ranks is what DDP, DTensor's placements and Megatron's
    attributes say, as for `passport`; what none of them says is left out, which the readers say.

    TypeError and ValueError name the argument. The methods run on the training thread, and raise
    nothing later: trouble is one warning, and the training goes on. It is also a callback of
    the trainers of transformers and Lightning (import these first): `callbacks=[ReplicaWatch()]`.

    >>> import torch
    >>> from my_utils.tensors import ReplicaWatch
    >>> watch = ReplicaWatch(torch.nn.Linear(2, 2), every=10)
    >>> watch
    ReplicaWatch(every=10, checks=0)
    """

    if not TYPE_CHECKING:  # which takes the arguments of `__init__`

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return new_callback(cls)

    def replay(self, step_fn: Callable[[], Any]) -> Replayed:
        """Runs the forward and the backward of one batch twice from the same state, and says
        whether loss, gradients and buffers are the same, bit for bit. If not, a module, an operator
        or the device does not repeat itself, or is broken; two replicas cannot say which is wrong.

        step_fn: runs both, without an optimizer step, and returns the loss. Where its backward
            has collectives, as with DDP, all ranks must call this.

        Parameters, buffers, gradients and random generators are afterwards as before. It needs
        memory for a copy of the first three. The first module whose outputs differ is named by a
        `ForwardTraceRecorder`, under which compiled modules run eagerly.

        >>> import torch
        >>> from my_utils.tensors import ReplicaWatch
        >>> model = torch.nn.Linear(2, 2)
        >>> def step():
        ...     loss = model(torch.ones(1, 2)).sum()
        ...     loss.backward()
        ...     return loss
        >>> ReplicaWatch(model).replay(step).is_same
        True
        """
        from .replay import replay

        if not callable(step_fn):
            raise wrong_type("step_fn", "a function", step_fn)
        return replay(self.known_models(), step_fn)

    # --- what trainers call ---

    def on_train_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by transformers."""
        self._models = self._models or find_models(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by transformers."""
        self.step(state.global_step)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Called by Lightning."""
        self._models = self._models or find_models(module)

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Called by Lightning, also where a batch ends without a step."""
        if trainer.global_step != self._step:
            self.step(trainer.global_step)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Called by both."""
        self.close()
