"""What was found of the replicas of a run: plain data that goes into JSON.

The annotations are not strings here: msgspec evaluates them.
"""

from typing import Literal, TypedDict


class ReplicaTensorData(TypedDict):
    """A tensor that differs.

    place: such as "rows 40-43"; empty where it is not known more closely than the tensor.
    ranks: those that are not as most are.
    text: who is against whom.
    """

    name: str
    place: str
    ranks: list[int]
    text: str


class ReplicaDifferenceData(TypedDict):
    """Replicas that differ from a check on.

    kind: "parameters", "gradients", "optimizer state" or "buffers".
    attempt: of the job.
    members: the ranks that must have these tensors equal.
    equal: the step of the last check before it at which all were; null if there is none.
    first: the step of the first check at which they differ.
    last: the step of the last one in a row.
    ranks: those that are not as most are.
    seen: the step of the first check of whose tensors something is known; null if there is none.
    tensors: those that differ at `seen`.
    text: all of it in one line.
    """

    kind: str
    attempt: int
    members: list[int]
    equal: int | None
    first: int
    last: int
    ranks: list[int]
    seen: int | None
    tensors: list[ReplicaTensorData]
    text: str


class ReplicasData(TypedDict):
    """Whether replicas differ, by `my_utils run --watch-replicas` or `ReplicaWatch`.

    status: "equal", "differ", or "not compared" where no two ranks have left sums of one tensor.
    checks: how many steps were compared.
    step: the last one of them; null if there is none.
    differences: the earliest first.
    notes: what was not checked, and why.
    """

    version: Literal[1]
    status: Literal["equal", "differ", "not compared"]
    checks: int
    step: int | None
    differences: list[ReplicaDifferenceData]
    notes: list[str]
