"""Problems as data: what an assignment costs, the contest's file format, ties."""

from __future__ import annotations

import gzip
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.problem import Edge, Problem, ProblemError, tie
from tests.problems import problems

SMALL = Problem(
    costs=(np.array([1.0, 2.0]), np.array([3.0, 5.0, math.inf])),
    usages=(np.array([10.0, 20.0]), np.array([1.0, 2.0, 3.0])),
    intervals=((0, 4), (2, 6)),
    edges=(Edge(0, 1, np.array([[0.0, 1.0, 2.0], [3.0, math.inf, 5.0]])),),
    usage_limit=12.0,
    names=("weights", "loss"),
)


def naive_peak(problem: Problem, picks: list[int]) -> tuple[float, int]:
    """Looks at every time there is."""
    last = max((end for _, end in problem.intervals), default=0)
    live = [
        sum(
            float(problem.usages[node][pick])
            for node, pick in enumerate(picks)
            if problem.intervals[node][0] <= time < problem.intervals[node][1]
        )
        for time in range(last + 1)
    ]
    return max(live), live.index(max(live))


@pytest.mark.parametrize(
    ("picks", "cost", "peak", "feasible"),
    [((0, 0), 4.0, 11.0, True), ((0, 1), 7.0, 12.0, True), ((1, 0), 8.0, 21.0, False), ((1, 1), math.inf, 22.0, False)],
)
def test_evaluate_by_hand(picks: tuple[int, int], cost: float, peak: float, feasible: bool) -> None:
    found = SMALL.evaluate(picks)
    assert (found.cost, found.peak_usage, found.peak_time, found.feasible) == (cost, peak, 2, feasible)


@given(problems(), st.data())
def test_evaluate_is_the_naive_sum(problem: Problem, data: st.DataObject) -> None:
    picks = [data.draw(st.integers(0, costs.size - 1)) for costs in problem.costs]
    nodes = [problem.costs[node][pick] for node, pick in enumerate(picks)]
    cost = math.fsum([*nodes, *(edge.cost[picks[edge.tail], picks[edge.head]] for edge in problem.edges)])
    peak, time = naive_peak(problem, picks)
    found = problem.evaluate(picks)
    assert found.cost == cost
    assert found.peak_usage == peak
    assert not peak or found.peak_time == time
    assert found.feasible == (cost < math.inf and (problem.usage_limit is None or peak <= problem.usage_limit))


@given(problems())
def test_json_round_trip(problem: Problem) -> None:
    again = Problem.from_json(problem.to_json())
    assert again.to_json() == problem.to_json()
    assert (again.intervals, again.usage_limit, again.names) == (
        problem.intervals,
        problem.usage_limit,
        problem.names,
    )
    for ours, theirs in zip((*problem.costs, *problem.usages), (*again.costs, *again.usages), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for edge, copy in zip(problem.edges, again.edges, strict=True):
        assert (edge.tail, edge.head) == (copy.tail, copy.head)
        np.testing.assert_array_equal(edge.cost, copy.cost)


@pytest.mark.parametrize("name", ["small.json", "small.json.gz"])
def test_files_round_trip(tmp_path: Path, name: str) -> None:
    SMALL.write(tmp_path / name)
    assert Problem.read(tmp_path / name).to_json() == SMALL.to_json()


@pytest.mark.parametrize("name", ["small.json", "small.json.gz"])
def test_files_cut_off_are_refused(tmp_path: Path, name: str) -> None:
    SMALL.write(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for length in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(ProblemError, match=name):
            Problem.read(tmp_path / name)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(SMALL.to_json().encode()))
    data[20] ^= 0xFF
    (tmp_path / "small.json.gz").write_bytes(data)
    with pytest.raises(ProblemError, match="small"):
        Problem.read(tmp_path / "small.json.gz")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"nodes":{', '"knots":{', "problem has no dict 'nodes'"),
        ("[0,4]", "[0]", r"problem.nodes.intervals\[0\] is \[0\]; two whole numbers"),
        ("[0,4]", "[4,0]", r"node 0 \(weights\): interval \[4, 0\) ends before it starts"),
        ("[1,2]", '[1,"2"]', r"problem.nodes.costs\[0\] is not a list of numbers"),
        ("[1,2]", "[1,true]", r"problem.nodes.costs\[0\] is not a list of numbers"),
        ("[1,2]", "[1,1" + 400 * "0" + "]", r"problem.nodes.costs\[0\] has a whole number too large"),
        ("[10,20]", "[10]", r"node 0 \(weights\): costs have shape \(2,\) and usages \(1,\)"),
        ("[10,20]", "[10,-20]", r"node 0 \(weights\): a usage is negative"),
        ("[[0,1]]", "[[0,7]]", r"problem.edges.nodes\[0\] is \[0, 7\] but there are 2 nodes"),
        ("[[0,1]]", "[[0,1],[1,0]]", "2 pairs of nodes but 1 cost matrices"),
        ("[[0,1,2,3,", "[[1,2,3,", r"problem.edges.costs\[0\] has 5 entries; nodes 0 and 1 have 2 x 3"),
        ('"usage_limit":12', '"usage_limit":"12"', "problem.usage_limit is '12'"),
        ('"names":["weights","loss"]', '"names":["weights"]', "2 nodes but 1 names"),
    ],
)
def test_inconsistent_files_name_the_place(old: str, new: str, message: str) -> None:
    text = SMALL.to_json()
    assert old in text
    with pytest.raises(ProblemError, match=message):
        Problem.from_json(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"costs": (SMALL.costs[0],)}, "1 nodes have costs but 2 have usages"),
        ({"costs": (np.array([1.0, math.nan]), SMALL.costs[1])}, "node 0 .*NaN"),
        ({"edges": (Edge(0, 2, np.zeros((2, 2))),)}, "edge 0: there is no node 2"),
        ({"edges": (Edge(1, 0, np.zeros((2, 3))),)}, r"edge 0, .* has shape \(2, 3\), .* make \(3, 2\)"),
        ({"edges": (Edge(0, 1, np.full((2, 3), -math.inf)),)}, "edge 0: a cost is NaN or -inf"),
        ({"usage_limit": -1.0}, "usage_limit is -1.0"),
    ],
)
def test_problems_that_do_not_fit_together(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("picks", "message"), [((0,), "1 picks for 2 nodes"), ((0, 3), r"node 1 \(loss\): there is no strategy 3")]
)
def test_picks_that_are_none(picks: tuple[int, ...], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        SMALL.evaluate(picks)


@given(problems(), st.data())
def test_ties_forbid_what_splits_a_group_and_change_nothing_else(problem: Problem, data: st.DataObject) -> None:
    sizes = [costs.size for costs in problem.costs]
    groups = [size * 2 + data.draw(st.integers(0, 1)) for size in sizes]
    tied = tie(problem, groups)
    for picks in itertools.islice(itertools.product(*map(range, sizes)), 300):
        together = all(
            picks[a] == picks[b] for a, b in itertools.combinations(range(len(picks)), 2) if groups[a] == groups[b]
        )
        before, after = problem.evaluate(picks), tied.evaluate(picks)
        assert after.cost == (before.cost if together else math.inf)
        assert after.peak_usage == before.peak_usage


def test_ties_of_unequal_nodes_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"\(weights\) and node 1 \(loss\) are in group 5 but have 2 and 3"):
        tie(SMALL, [5, 5])
    with pytest.raises(ProblemError, match="1 group labels for 2 nodes"):
        tie(SMALL, [5])
