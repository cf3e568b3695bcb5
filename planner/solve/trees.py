"""The inner loops of `search.py`: the best joint choice for a tree of nodes, while all others stay as they are.

A tree grows from a random node over random arcs; a node joins if it has one neighbour in the tree, so that no other
arcs are between its members. Its best assignment follows from one pass from the leaves to the root and one back, which
is exact, whatever its size (nonserial dynamic programming: Bertele and Brioschi, 1972; as moves of a local search:
Hamze and de Freitas, "From fields to trees", 2004).

Rows of memory are kept in a binary tree of maxima, so that what a move does to a span of thousands of rows takes as
many steps as that number has digits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.problem import FloatArray, IntArray
from planner.solve.compiled import kernel
from planner.solve.flat import Graph, Memory


class Peaks(NamedTuple):
    """The bytes alive in each row, as a binary tree: node k has the children 2k and 2k + 1, rows are the leaves.

    Attributes:
        most: what is alive below each node at most, without what is added at the nodes above it.
        added: what was added to all rows below each node.
    """

    most: FloatArray
    added: FloatArray


def peaks(live: FloatArray) -> Peaks:
    """The tree for so many bytes in each row."""
    leaves = 1 << max(0, live.size - 1).bit_length()
    most = np.full(2 * leaves, -np.inf)
    most[leaves : leaves + live.size] = live
    level = leaves
    while level > 1:
        most[level // 2 : level] = most[level : 2 * level].reshape(-1, 2).max(axis=1)
        level //= 2
    return Peaks(most, np.zeros(2 * leaves))


@kernel
def _add(peaks: Peaks, first: int, last: int, change: float) -> None:
    """Adds bytes to the rows from first to before last."""
    low = first + peaks.most.size // 2
    high = last - 1 + peaks.most.size // 2
    left, right = low, high + 1
    while left < right:
        if left & 1:
            peaks.most[left] += change
            peaks.added[left] += change
            left += 1
        if right & 1:
            right -= 1
            peaks.most[right] += change
            peaks.added[right] += change
        left >>= 1
        right >>= 1
    for leaf in (low, high):
        above = leaf >> 1
        while above:
            peaks.most[above] = max(peaks.most[2 * above], peaks.most[2 * above + 1]) + peaks.added[above]
            above >>= 1


@kernel
def _most(peaks: Peaks, first: int, last: int) -> float:
    """The most bytes in any row from first to before last."""
    left = first + peaks.most.size // 2
    right = last - 1 + peaks.most.size // 2
    on_left, on_right = peaks.most[left], peaks.most[right]
    while left >> 1 != right >> 1:
        if not left & 1:
            on_left = max(on_left, peaks.most[left + 1])
        if right & 1:
            on_right = max(on_right, peaks.most[right - 1])
        left >>= 1
        right >>= 1
        on_left += peaks.added[left]
        on_right += peaks.added[right]
    most = max(on_left, on_right)
    above = left >> 1
    while above:
        most += peaks.added[above]
        above >>= 1
    return most


class Tree(NamedTuple):
    """Room for one tree, and marks on all nodes.

    Attributes:
        place: per node of the graph, its place in the tree, or -1.
        touching: per node of the graph, how many of its neighbours are in the tree.
        node: per place, the node.
        parent: per place, the arc from the parent, which has an earlier place.
        score: per place and strategy, what the tree below costs at least.
        answer: per place and strategy of the parent, the best strategy.
        pick: per place, the new pick.
        border: arcs that may lead to new members.
    """

    place: IntArray
    touching: IntArray
    node: IntArray
    parent: IntArray
    score: FloatArray
    answer: IntArray
    pick: IntArray
    border: IntArray


def tree(graph: Graph, size: int) -> Tree:
    """Room for trees of so many nodes."""
    nodes = graph.start.size - 1
    widest = int(np.diff(graph.start).max(initial=1))
    return Tree(
        place=np.full(nodes, -1),
        touching=np.zeros(nodes, dtype=np.int64),
        node=np.zeros(size, dtype=np.int64),
        parent=np.zeros(size, dtype=np.int64),
        score=np.zeros((size, widest)),
        answer=np.zeros((size, widest), dtype=np.int64),
        pick=np.zeros(size, dtype=np.int64),
        border=np.zeros(graph.other.size + 1, dtype=np.int64),
    )


@kernel
def _grow(graph: Graph, tree: Tree, size: int, random: np.random.Generator) -> int:
    """Marks the members of a new tree; returns how many there are."""
    nodes = graph.start.size - 1
    count, waiting = 0, 0
    joins, over = int(random.random() * nodes), -1
    while True:
        tree.node[count], tree.parent[count], tree.place[joins] = joins, over, count
        count += 1
        for arc in range(graph.arcs[joins], graph.arcs[joins + 1]):
            tree.touching[graph.other[arc]] += 1
            if tree.place[graph.other[arc]] < 0:
                tree.border[waiting] = arc
                waiting += 1
        joins = -1
        while waiting and joins < 0 and count < size:
            drawn = int(random.random() * waiting)
            over = tree.border[drawn]
            waiting -= 1
            tree.border[drawn] = tree.border[waiting]
            if tree.place[graph.other[over]] < 0 and tree.touching[graph.other[over]] == 1:
                joins = graph.other[over]
        if joins < 0:
            return count


@kernel
def _clear(graph: Graph, tree: Tree, count: int) -> None:
    """Takes the marks of a tree away."""
    for place in range(count):
        node = tree.node[place]
        tree.place[node] = -1
        for arc in range(graph.arcs[node], graph.arcs[node + 1]):
            tree.touching[graph.other[arc]] = 0


@kernel
def _score(
    graph: Graph, memory: Memory, peaks: Peaks, limit: float, costs: FloatArray, picks: IntArray, tree: Tree, place: int
) -> int:
    """What each strategy of a member costs with those around the tree; `inf` for what alone goes above the limit.

    Returns:
        How many numbers were looked at.
    """
    node = tree.node[place]
    size = graph.start[node + 1] - graph.start[node]
    score = tree.score[place]
    for s in range(size):
        score[s] = costs[graph.start[node] + s]
    for arc in range(graph.arcs[node], graph.arcs[node + 1]):
        other = graph.other[arc]
        if tree.place[other] < 0:
            entry = graph.columns[arc] + picks[other] * size
            for s in range(size):
                score[s] += graph.entries[entry + s]
    for span in range(memory.spans[node], memory.spans[node + 1]):
        at = memory.at[span]
        used = memory.usage[at + picks[node]]
        room = limit - _most(peaks, memory.first[span], memory.last[span]) + used
        for s in range(size):
            if memory.usage[at + s] > max(room, used):
                score[s] = np.inf
    return size * (graph.arcs[node + 1] - graph.arcs[node] + 2 * (memory.spans[node + 1] - memory.spans[node]) + 1)


@kernel
def _send(graph: Graph, tree: Tree, picks: IntArray, place: int) -> float:
    """Adds to the parent's scores what the member costs at best; returns what the arc between costs now."""
    arc = graph.twin[tree.parent[place]]
    parent = graph.other[arc]
    size = graph.start[tree.node[place] + 1] - graph.start[tree.node[place]]
    others = graph.start[parent + 1] - graph.start[parent]
    score, answer = tree.score[place], tree.answer[place]
    entry = graph.rows[arc]
    best = np.full(others, np.inf)
    for s in range(size):
        if score[s] < np.inf:
            for t in range(others):
                cost = score[s] + graph.entries[entry + s * others + t]
                if cost < best[t]:
                    best[t] = cost
                    answer[t] = s
    above = tree.score[tree.place[parent]]
    for t in range(others):
        above[t] += best[t]
    return graph.entries[entry + picks[tree.node[place]] * others + picks[parent]]


@kernel
def _set(memory: Memory, peaks: Peaks, node: int, old: int, new: int) -> None:
    """Changes what a node has alive."""
    for span in range(memory.spans[node], memory.spans[node + 1]):
        change = memory.usage[memory.at[span] + new] - memory.usage[memory.at[span] + old]
        if change != 0.0:
            _add(peaks, memory.first[span], memory.last[span], change)


@kernel
def _apply(memory: Memory, peaks: Peaks, limit: float, picks: IntArray, tree: Tree, count: int) -> bool:
    """Makes the tree's new picks those of its nodes, unless they are above the limit together."""
    for place in range(count):
        node = tree.node[place]
        if tree.pick[place] != picks[node]:
            _set(memory, peaks, node, picks[node], tree.pick[place])
    fits = peaks.most[1] <= limit
    for place in range(count):
        node = tree.node[place]
        if tree.pick[place] != picks[node]:
            if fits:
                picks[node] = tree.pick[place]
            else:
                _set(memory, peaks, node, tree.pick[place], picks[node])
    return fits


@kernel
def improve(
    graph: Graph,
    memory: Memory,
    peaks: Peaks,
    limit: float,
    costs: FloatArray,
    picks: IntArray,
    tree: Tree,
    work: int,
    random: np.random.Generator,
) -> int:
    """Chooses random trees anew, one after the other, for as long as the work lasts.

    Args:
        limit: bytes; what is alive stays within it, and must be at the start.
        costs: per strategy, prices for memory included.
        picks: changed in place, with `peaks`; what they cost never rises.
        work: how many numbers may be looked at.

    Returns:
        How many were.
    """
    done = 0
    while done < work:
        count = _grow(graph, tree, 1 + int(random.random() * tree.node.size), random)
        now = 0.0
        for place in range(count):
            done += _score(graph, memory, peaks, limit, costs, picks, tree, place)
            now += tree.score[place, picks[tree.node[place]]]
        for place in range(count - 1, 0, -1):
            now += _send(graph, tree, picks, place)
        root = tree.node[0]
        tree.pick[0] = tree.score[0, : graph.start[root + 1] - graph.start[root]].argmin()
        changed = tree.pick[0] != picks[root]
        for place in range(1, count):
            above = tree.place[graph.other[graph.twin[tree.parent[place]]]]
            tree.pick[place] = tree.answer[place, tree.pick[above]]
            changed = changed or tree.pick[place] != picks[tree.node[place]]
        if changed and tree.score[0, tree.pick[0]] <= now:
            _apply(memory, peaks, limit, picks, tree, count)
        _clear(graph, tree, count)
    return done
