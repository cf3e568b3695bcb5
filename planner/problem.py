"""The sharding problem as plain data: pick one strategy per node, so that costs are least and memory fits.

    minimise    sum_i cost_i[x_i]  +  sum_(i,j) cost_ij[x_i, x_j]
    subject to  sum_(i live at t) usage_i[x_i]  <=  usage_limit      at every time t

A problem scores any assignment by itself (`Problem.evaluate`), so every solver is checked by it. It is read and written
in the JSON of the ASPLOS 2025 contest on intra-operator parallelism (https://github.com/google/iopddl), where costs are
seconds here and whatever the publisher chose there.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import MeshwrightError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

JSON_INFINITY = 1e18
"""The contest's published instances write an impossible cost as this number."""

NUMBERS = frozenset({int, float})
"""What JSON's numbers become; its true and false are none, though Python's are."""


class ProblemError(MeshwrightError):
    """A problem, a problem file or an assignment that is not well formed; says where."""


@dataclass(frozen=True, eq=False)
class Edge:
    """What two choices cost together: `cost[s, t]` seconds if tail picks s and head picks t; `inf` forbids."""

    tail: int
    head: int
    cost: FloatArray


@dataclass(frozen=True)
class Evaluation:
    """What an assignment comes to.

    Attributes:
        cost: sum of node and edge costs, in seconds; `inf` if it picks something impossible.
        peak_usage: the most bytes live at once.
        peak_time: the earliest time at which that many are; 0 if nothing is ever live.
        feasible: the cost is finite and the peak is within the limit.
    """

    cost: float
    peak_usage: float
    peak_time: int
    feasible: bool


@dataclass(frozen=True, eq=False)
class _Flat:
    """A problem as flat arrays.

    Attributes:
        start: (nodes + 1), where the strategies of each node begin in `costs` and `usages`.
        tails, heads: per edge, its ends.
        entry: per edge, where its matrix begins in `entries`, row after row; a matrix that edges share is there once.
        times: at which what is live changes, ascending.
        first, last: per node, the places in `times` of its start and end.
    """

    start: IntArray
    costs: FloatArray
    usages: FloatArray
    tails: IntArray
    heads: IntArray
    entry: IntArray
    entries: FloatArray
    times: IntArray
    first: IntArray
    last: IntArray

    @staticmethod
    def of(problem: Problem) -> _Flat:
        nothing = np.zeros(0)
        ends = np.array([(edge.tail, edge.head) for edge in problem.edges], dtype=np.int64).reshape(-1, 2)
        matrices = {id(edge.cost): edge.cost for edge in problem.edges}
        begins = dict(zip(matrices, starts([cost.size for cost in matrices.values()])[:-1].tolist(), strict=True))
        spans = np.array(problem.intervals, dtype=np.int64).reshape(-1, 2)
        times = np.unique(spans)
        places = np.searchsorted(times, spans)
        return _Flat(
            start=starts([costs.size for costs in problem.costs]),
            costs=np.concatenate([nothing, *problem.costs]),
            usages=np.concatenate([nothing, *problem.usages]),
            tails=ends[:, 0],
            heads=ends[:, 1],
            entry=np.array([begins[id(edge.cost)] for edge in problem.edges], dtype=np.int64),
            entries=np.concatenate([nothing, *(cost.ravel() for cost in matrices.values())]),
            times=times,
            first=places[:, 0],
            last=places[:, 1],
        )


def starts(sizes: Sequence[int] | IntArray) -> IntArray:
    """Where each of some things of these sizes begins, one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Nodes with strategies, live over half-open intervals; edges between them; a limit on what is live at once.

    A load that is there whatever is chosen is a node of one strategy. Edges may be parallel, loops, or in either
    direction; costs may be `inf` where a choice is impossible.

    Attributes:
        costs: per node, seconds for each strategy.
        usages: per node, bytes for each strategy while the node is live.
        intervals: per node, `(start, end)`; live at start, no longer at end.
        edges: see `Edge`.
        usage_limit: bytes, or None for no limit.
        names: per node, for messages; empty, or one for each node.
        name: of the problem.

    Raises:
        ProblemError: lengths, shapes, node numbers or values do not fit together.
    """

    costs: tuple[FloatArray, ...]
    usages: tuple[FloatArray, ...]
    intervals: tuple[tuple[int, int], ...]
    edges: tuple[Edge, ...]
    usage_limit: float | None = None
    names: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        count = len(self.costs)
        for what, found in (("usages", len(self.usages)), ("intervals", len(self.intervals))):
            if found != count:
                raise ProblemError(f"{count} nodes have costs but {found} have {what}; give one entry per node")
        if self.names and len(self.names) != count:
            raise ProblemError(f"{count} nodes but {len(self.names)} names; give one per node, or none")
        for node in range(count):
            self._check_node(node)
        checked: set[int] = set()
        for number, edge in enumerate(self.edges):
            self._check_edge(number, edge, finite=id(edge.cost) not in checked)
            checked.add(id(edge.cost))
        if self.usage_limit is not None and not self.usage_limit >= 0:
            raise ProblemError(f"usage_limit is {self.usage_limit}; give a number of bytes, or None for no limit")

    def _check_node(self, node: int) -> None:
        costs, usages, (start, end) = self.costs[node], self.usages[node], self.intervals[node]
        if costs.ndim != 1 or usages.shape != costs.shape or not costs.size:
            raise ProblemError(
                f"{self.label(node)}: costs have shape {costs.shape} and usages {usages.shape}; "
                "both need one entry per strategy, at least one"
            )
        if not (costs > -math.inf).all():
            raise ProblemError(f"{self.label(node)}: a cost is NaN or -inf; only +inf may mark an impossible strategy")
        if not ((usages >= 0) & (usages < math.inf)).all():
            raise ProblemError(f"{self.label(node)}: a usage is negative, NaN or infinite; give bytes")
        if start > end:
            raise ProblemError(f"{self.label(node)}: interval [{start}, {end}) ends before it starts")

    def _check_edge(self, number: int, edge: Edge, finite: bool) -> None:
        for end in (edge.tail, edge.head):
            if not 0 <= end < len(self.costs):
                raise ProblemError(f"edge {number}: there is no node {end}; nodes are 0 to {len(self.costs) - 1}")
        wanted = (self.costs[edge.tail].size, self.costs[edge.head].size)
        if edge.cost.shape != wanted:
            raise ProblemError(
                f"edge {number}, {self.label(edge.tail)} to {self.label(edge.head)}: the cost matrix has shape "
                f"{edge.cost.shape}, the strategies of its ends make {wanted}"
            )
        if finite and not (edge.cost > -math.inf).all():
            raise ProblemError(f"edge {number}: a cost is NaN or -inf; only +inf may mark an impossible pair")

    def label(self, node: int) -> str:
        """The node as a message names it."""
        return f"node {node} ({self.names[node]})" if self.names else f"node {node}"

    def evaluate(self, picks: Sequence[int] | IntArray) -> Evaluation:
        """What the assignment costs and needs, from the data alone.

        Args:
            picks: the strategy's index for each node.

        Raises:
            ProblemError: there is not one pick per node, or one is not an index of that node's strategies.
        """
        flat, chosen = self._flat, self._checked(picks)
        entries = flat.entry + chosen[flat.tails] * np.diff(flat.start)[flat.heads] + chosen[flat.heads]
        # The correctly rounded sum, which does not depend on the order.
        cost = math.fsum([*flat.costs[flat.start[:-1] + chosen].tolist(), *flat.entries[entries].tolist()])
        times, live_bytes = self.usage_over_time(chosen)
        at = int(np.argmax(live_bytes)) if live_bytes.size else -1
        peak_usage, peak_time = (float(live_bytes[at]), int(times[at])) if at >= 0 else (0.0, 0)
        within = self.usage_limit is None or peak_usage <= self.usage_limit
        return Evaluation(cost, peak_usage, peak_time, feasible=within and cost < math.inf)

    def usage_over_time(self, picks: Sequence[int] | IntArray) -> tuple[IntArray, FloatArray]:
        """The times at which what is live changes, ascending, and the bytes live from each until the next."""
        flat = self._flat
        used = flat.usages[flat.start[:-1] + np.asarray(picks, dtype=np.int64)]
        change = np.zeros(flat.times.size)
        np.add.at(change, flat.first, used)
        np.add.at(change, flat.last, -used)
        return flat.times, np.cumsum(change)

    @cached_property
    def _flat(self) -> _Flat:
        return _Flat.of(self)

    def _checked(self, picks: Sequence[int] | IntArray) -> IntArray:
        chosen = np.asarray(picks, dtype=np.int64)
        if len(chosen) != len(self.costs):
            raise ProblemError(f"{len(chosen)} picks for {len(self.costs)} nodes; give one per node")
        sizes = np.diff(self._flat.start)
        for node in np.flatnonzero((chosen < 0) | (chosen >= sizes))[:1]:
            raise ProblemError(
                f"{self.label(int(node))}: there is no strategy {chosen[node]}; it has 0 to {sizes[node] - 1}"
            )
        return chosen

    def to_json(self) -> str:
        """The contest's JSON. Node names are an addition of ours, which other readers ignore."""
        nodes: dict[str, Any] = {
            "intervals": [list(interval) for interval in self.intervals],
            "costs": [_numbers(costs) for costs in self.costs],
            "usages": [_numbers(usages) for usages in self.usages],
        }
        if self.names:
            nodes["names"] = list(self.names)
        edges = {
            "nodes": [[edge.tail, edge.head] for edge in self.edges],
            "costs": [_numbers(edge.cost.ravel()) for edge in self.edges],
        }
        problem: dict[str, Any] = {"name": self.name, "nodes": nodes, "edges": edges}
        if self.usage_limit is not None:
            problem["usage_limit"] = _numbers(np.array([self.usage_limit]))[0]
        return json.dumps({"problem": problem}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Problem:
        """The problem that `to_json`, or the contest's publisher, wrote.

        Raises:
            ProblemError: the text is cut off or inconsistent; the message names the place.
        """
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise ProblemError(f"not a whole JSON document: {error}") from error
        problem = _field(document, "problem", "the document", dict)
        nodes = _field(problem, "nodes", "problem", dict)
        edges = _field(problem, "edges", "problem", dict)
        costs = _rows(nodes, "costs", "problem.nodes")
        limit = problem.get("usage_limit")
        if limit is not None and type(limit) not in NUMBERS:
            raise ProblemError(f"problem.usage_limit is {limit!r}; a number of bytes belongs there")
        return Problem(
            costs=costs,
            usages=_rows(nodes, "usages", "problem.nodes"),
            intervals=_integer_pairs(nodes, "intervals", "problem.nodes"),
            edges=_edges(edges, costs),
            usage_limit=limit,
            names=tuple(str(name) for name in nodes.get("names", ())),
            name=str(problem.get("name", "")),
        )

    def write(self, path: str | Path) -> None:
        """Writes the JSON to a file, compressed if its name ends in `.gz`."""
        data = self.to_json().encode()
        Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)

    @staticmethod
    def read(path: str | Path) -> Problem:
        """Reads a `.json` or `.json.gz` file.

        Raises:
            ProblemError: the file is cut off or inconsistent; the message names file and place.
        """
        try:
            data = Path(path).read_bytes()
            return Problem.from_json((gzip.decompress(data) if str(path).endswith(".gz") else data).decode())
        except (ProblemError, EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            raise ProblemError(f"{path}: {error}") from error


def tie(problem: Problem, groups: Sequence[int]) -> Problem:
    """The same problem with nodes of one group made to pick the same index, as twin layers do.

    Nodes keep their places, so an assignment means the same in both problems and its cost is the same; one that splits
    a group is impossible here. The solver merges tied nodes, so ties make a problem smaller.

    Args:
        groups: a label for each node; nodes of one label must have equally many strategies.

    Raises:
        ProblemError: there is not one label per node, or the nodes of a group differ in their number of strategies.
    """
    if len(groups) != len(problem.costs):
        raise ProblemError(f"{len(groups)} group labels for {len(problem.costs)} nodes; give one per node")
    first: dict[int, int] = {}
    same_index: dict[int, FloatArray] = {}
    ties = []
    for node, group in enumerate(groups):
        leader = first.setdefault(group, node)
        size = problem.costs[node].size
        if size != problem.costs[leader].size:
            raise ProblemError(
                f"{problem.label(leader)} and {problem.label(node)} are in group {group} but have "
                f"{problem.costs[leader].size} and {size} strategies; only equal lists can be tied"
            )
        if leader != node:
            if size not in same_index:
                same_index[size] = np.where(np.eye(size, dtype=bool), 0.0, math.inf)
            ties.append(Edge(leader, node, same_index[size]))
    return Problem(
        problem.costs,
        problem.usages,
        problem.intervals,
        (*problem.edges, *ties),
        problem.usage_limit,
        problem.names,
        problem.name,
    )


def _numbers(values: ArrayLike) -> list[float | int]:
    """As JSON wants them: infinities by the format's number, whole numbers without a point."""
    finite = np.minimum(np.asarray(values, dtype=np.float64), JSON_INFINITY)
    return [int(value) if value.is_integer() else value for value in finite.tolist()]


def _field(record: Any, key: str, place: str, kind: type) -> Any:
    if not isinstance(record, Mapping) or not isinstance(record.get(key), kind):
        raise ProblemError(f"{place} has no {kind.__name__} {key!r}")
    return record[key]


def _rows(record: Any, key: str, place: str) -> tuple[FloatArray, ...]:
    return tuple(_row(row, f"{place}.{key}[{index}]") for index, row in enumerate(_field(record, key, place, list)))


def _row(row: Any, place: str) -> FloatArray:
    if not isinstance(row, list) or not NUMBERS.issuperset(map(type, row)):
        raise ProblemError(f"{place} is not a list of numbers")
    try:
        values = np.array(row, dtype=np.float64)
    except OverflowError as error:
        raise ProblemError(f"{place} has a whole number too large for a cost or a usage") from error
    return np.where(values >= JSON_INFINITY, math.inf, values)


def _integer_pairs(record: Any, key: str, place: str) -> tuple[tuple[int, int], ...]:
    pairs = _field(record, key, place, list)
    for index, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int or type(pair[1]) is not int:
            raise ProblemError(f"{place}.{key}[{index}] is {pair!r}; two whole numbers belong there")
    return tuple((first, second) for first, second in pairs)


def _edges(record: Any, node_costs: Sequence[FloatArray]) -> tuple[Edge, ...]:
    ends = _integer_pairs(record, "nodes", "problem.edges")
    rows = _rows(record, "costs", "problem.edges")
    if len(ends) != len(rows):
        raise ProblemError(f"problem.edges has {len(ends)} pairs of nodes but {len(rows)} cost matrices")
    edges = []
    for index, ((tail, head), row) in enumerate(zip(ends, rows, strict=True)):
        if not (0 <= tail < len(node_costs) and 0 <= head < len(node_costs)):
            raise ProblemError(
                f"problem.edges.nodes[{index}] is [{tail}, {head}] but there are {len(node_costs)} nodes"
            )
        shape = (node_costs[tail].size, node_costs[head].size)
        if row.size != shape[0] * shape[1]:
            raise ProblemError(
                f"problem.edges.costs[{index}] has {row.size} entries; nodes {tail} and {head} have "
                f"{shape[0]} x {shape[1]} strategies"
            )
        edges.append(Edge(tail, head, row.reshape(shape)))
    return tuple(edges)
