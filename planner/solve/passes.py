"""The inner loops of `bound.py`: going over all nodes in order, moving cost along the arcs."""

from __future__ import annotations

import numpy as np

from planner.problem import FloatArray, IntArray
from planner.solve.compiled import kernel
from planner.solve.flat import Graph, Memory


@kernel
def sweep(
    graph: Graph, unary: FloatArray, messages: FloatArray, forward: bool, totals: FloatArray, elsewhere: FloatArray
) -> float:
    """Each node in order takes what pairs with those before hold for it, and shares with pairs to those ahead.

    A strategy that turns out to be impossible holds `inf` from then on, and takes no part; messages stay finite.

    Args:
        unary: per strategy, what its node holds; changed in place.
        messages: per strategy of an arc's own node, what was taken from the pair; changed in place.
        totals: filled, per strategy, with what its node held when it held most.
        elsewhere: filled, per node, with the least of everything else at that moment.

    Returns:
        The sum of what each node holds at least: with the model's constant, a bound; `inf`, and the rest is not
        filled in, if a node has nothing possible left.
    """
    nodes = graph.start.size - 1
    to_come = 0.0
    for node in range(nodes):
        to_come += unary[graph.start[node] : graph.start[node + 1]].min()
    crossing = np.zeros(nodes + 1)
    pulled = np.empty(0 if nodes == 0 else np.max(graph.start[1:] - graph.start[:-1]))
    done = 0.0
    for place in range(nodes):
        node = place if forward else nodes - 1 - place
        size = graph.start[node + 1] - graph.start[node]
        held = unary[graph.start[node] : graph.start[node + 1]]
        to_come -= held.min()
        behind = 0
        for arc in range(graph.arcs[node], graph.arcs[node + 1]):
            other = graph.other[arc]
            if (other < node) != forward:
                continue
            behind += 1
            others = graph.start[other + 1] - graph.start[other]
            twin = graph.held[graph.twin[arc]]
            own = graph.held[arc]
            entry = graph.columns[arc]
            pulled[:size] = np.inf
            for t in range(others):
                if unary[graph.start[other] + t] == np.inf:
                    continue
                taken = messages[twin + t]
                for s in range(size):
                    left = graph.entries[entry + t * size + s] - taken
                    pulled[s] = left if left < pulled[s] else pulled[s]
            least = np.inf
            for s in range(size):
                if pulled[s] < np.inf:
                    gained = pulled[s] - messages[own + s]
                    messages[own + s] = pulled[s]
                    held[s] += gained
                    least = min(least, gained)
                else:
                    held[s] = np.inf
            if least == np.inf:
                return np.inf
            before = other if forward else nodes - 1 - other
            crossing[before + 1] += least
            crossing[place] -= least
        if held.min() == np.inf:
            return np.inf
        ahead = graph.arcs[node + 1] - graph.arcs[node] - behind
        for s in range(size):
            totals[graph.start[node] + s] = held[s]
        elsewhere[node] = done + to_come
        if ahead:
            part = 1.0 / max(behind, ahead)
            for arc in range(graph.arcs[node], graph.arcs[node + 1]):
                if (graph.other[arc] < node) != forward:
                    for s in range(size):
                        if held[s] < np.inf:
                            messages[graph.held[arc] + s] -= part * held[s]
            for s in range(size):
                if held[s] < np.inf:
                    held[s] *= 1.0 - ahead * part
        done += held.min()
    passing = 0.0  # what pairs between nodes done and nodes to come hold
    for place in range(nodes):
        passing += crossing[place]
        elsewhere[place if forward else nodes - 1 - place] += passing
    return done


@kernel
def decode(graph: Graph, unary: FloatArray, messages: FloatArray) -> IntArray:
    """An assignment: each node in order takes its best, given those already fixed. After a backward pass."""
    nodes = graph.start.size - 1
    picks = np.zeros(nodes, dtype=np.int64)
    for node in range(nodes):
        size = graph.start[node + 1] - graph.start[node]
        score = unary[graph.start[node] : graph.start[node + 1]].copy()
        for arc in range(graph.arcs[node], graph.arcs[node + 1]):
            other = graph.other[arc]
            if other < node:
                entry = graph.columns[arc] + picks[other] * size
                for s in range(size):
                    score[s] += graph.entries[entry + s] - messages[graph.held[arc] + s]
        picks[node] = score.argmin()
    return picks


@kernel
def live_bytes(memory: Memory, picks: IntArray) -> FloatArray:
    """What is alive in each row."""
    rows = memory.base.size
    change = np.zeros(rows + 1)
    for node in range(picks.size):
        for span in range(memory.spans[node], memory.spans[node + 1]):
            used = memory.usage[memory.at[span] + picks[node]]
            change[memory.first[span]] += used
            change[memory.last[span]] -= used
    live = memory.base.copy()
    changed = 0.0
    for row in range(rows):
        changed += change[row]
        live[row] += changed
    return live


@kernel
def add_price(graph: Graph, memory: Memory, prices: FloatArray, unary: FloatArray) -> None:
    """Adds to each strategy what its bytes cost at so much per byte and row."""
    before = np.zeros(prices.size + 1)
    for row in range(prices.size):
        before[row + 1] = before[row] + prices[row]
    for node in range(graph.start.size - 1):
        for span in range(memory.spans[node], memory.spans[node + 1]):
            price = before[memory.last[span]] - before[memory.first[span]]
            if price != 0.0:
                for s in range(graph.start[node + 1] - graph.start[node]):
                    unary[graph.start[node] + s] += price * memory.usage[memory.at[span] + s]


@kernel
def cost(graph: Graph, costs: FloatArray, picks: IntArray) -> float:
    """What an assignment costs."""
    total = 0.0
    for node in range(picks.size):
        total += costs[graph.start[node] + picks[node]]
        for arc in range(graph.arcs[node], graph.arcs[node + 1]):
            other = graph.other[arc]
            if other > node:
                size = graph.start[other + 1] - graph.start[other]
                total += graph.entries[graph.rows[arc] + picks[node] * size + picks[other]]
    return total
