"""The strongly connected parts of a graph, as Tarjan finds them, without recursion."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

_Vertex = TypeVar("_Vertex", bound=Hashable)


def last_parts(
    vertices: Iterable[_Vertex], after: Callable[[_Vertex], Sequence[_Vertex]]
) -> list[list[_Vertex]]:
    """The strongly connected parts from which no edge leads to another part.

    >>> edges = {1: [2], 2: [3], 3: [2], 4: [5], 5: []}
    >>> sorted(sorted(part) for part in last_parts(edges, edges.__getitem__))
    [[2, 3], [5]]
    """
    return [part for part, is_last in _parts(vertices, after) if is_last]


def _parts(
    vertices: Iterable[_Vertex], after: Callable[[_Vertex], Sequence[_Vertex]]
) -> Iterator[tuple[list[_Vertex], bool]]:
    number: dict[_Vertex, int] = {}
    low: dict[_Vertex, int] = {}
    leaves: set[_Vertex] = set()  # those with an edge to a part that is complete
    place: dict[_Vertex, int] = {}  # on the stack
    stack: list[_Vertex] = []

    def enter(vertex: _Vertex) -> tuple[_Vertex, Iterator[_Vertex]]:
        number[vertex] = low[vertex] = len(number)
        place[vertex] = len(stack)
        stack.append(vertex)
        return vertex, iter(after(vertex))

    for root in vertices:
        if root in number:
            continue
        work = [enter(root)]
        while work:
            vertex, edges = work[-1]
            for other in edges:
                if other not in number:
                    work.append(enter(other))
                    break
                if other in place:
                    low[vertex] = min(low[vertex], number[other])
                else:
                    leaves.add(vertex)
            else:
                work.pop()
                if low[vertex] == number[vertex]:
                    part = stack[place[vertex] :]
                    del stack[place[vertex] :]
                    for member in part:
                        del place[member]
                    yield part, leaves.isdisjoint(part)
                    if work:
                        leaves.add(work[-1][0])
                if work:
                    before = work[-1][0]
                    low[before] = min(low[before], low[vertex])
