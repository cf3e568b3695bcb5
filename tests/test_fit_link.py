"""Links from timed collectives: what is never timed follows by the algorithm's formula."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from costmodel import CostModel, Dim, Link, Topology
from costmodel.fit_link import TimedCollective, fit_dim, timed_seconds
from costmodel.topology import Eager
from tests.costmodel_cases import machine

TRUTH = Link(
    "switch",
    latency_seconds=2e-6,
    bytes_per_second=3e11,
    start_seconds=4e-5,
    copy_bytes_per_second=1.2e12,
    reduce_bytes_per_second=2e11,
    eager=Eager(8e-6, 1e-6, 1e11),
)
GUESS = Link("switch", 1e-6, 4e11, 1e-5, reduce_bytes_per_second=3e11)


def switch(link: Link, size: int = 64) -> Topology:
    return machine(Dim("gpu", size, link))


def timed(kind: str, group_sizes: tuple[int, ...]) -> list[TimedCollective]:
    cases = list(itertools.product(group_sizes, 2.0 ** np.arange(10, 32, 1)))
    bare = [TimedCollective(kind, (size,), float(nbytes), 1.0) for size, nbytes in cases]
    return [replace(b, seconds=float(s)) for b, s in zip(bare, timed_seconds(switch(TRUTH), bare), strict=True)]


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-to-all", "all-reduce"])
def test_group_sizes_never_timed_follow_from_the_formula(kind: str) -> None:
    fitted = fit_dim(switch(GUESS), 0, timed(kind, (2, 8, 64)))
    unseen = timed(kind, (4, 16, 32))
    errors = np.abs(timed_seconds(fitted, unseen) / [sample.seconds for sample in unseen] - 1)
    assert np.median(errors) < 0.03
    assert np.quantile(errors, 0.9) < 0.15


def test_warm_up_outliers_hardly_count() -> None:
    samples = timed("all-gather", (2, 8))
    spoilt = [replace(s, seconds=s.seconds * 8) if s.nbytes == 1024 else s for s in samples]
    errors = [
        abs(seconds / sample.seconds - 1)
        for sample, seconds in zip(samples, timed_seconds(fit_dim(switch(GUESS), 0, spoilt), samples), strict=True)
    ]
    assert np.median(errors) < 0.05


def test_a_fit_changes_the_kinds_that_were_timed_and_no_other() -> None:
    fitted = fit_dim(switch(GUESS), 0, timed("all-gather", (2, 8)))
    assert set(fitted.dims[0].measured) == {"all-gather"}
    assert fitted.dims[0].link == GUESS
    before, after = (CostModel(t).on("xy", (8, 8)) for t in (switch(GUESS), fitted))
    for kind, same in (("all-gather", False), ("all-to-all", True)):
        pair = [float(cost.collective_seconds(kind, "x", 1e8)) for cost in (before, after)]
        assert (pair[0] == pair[1]) == same


def test_links_between_hosts_are_fitted_beneath_those_inside() -> None:
    inside, outside = Dim("gpu", 8, replace(TRUTH, reduce_bytes_per_second=None)), Link("network", 5e-6, 5e10, 2e-5)
    truth = machine(Dim("host", 4, outside), inside)
    sizes = 2.0 ** np.arange(15, 34, 1)
    bare = [TimedCollective("all-gather", (hosts, 8), float(n), 1.0) for hosts in (2, 4) for n in sizes]
    samples = [replace(b, seconds=float(s)) for b, s in zip(bare, timed_seconds(truth, bare), strict=True)]
    guess = machine(Dim("host", 4, Link("network", 2e-6, 9e10, 1e-6)), inside)
    fitted = fit_dim(guess, 0, samples)
    assert fitted.dims[1] == inside
    errors = np.abs(timed_seconds(fitted, samples) / [sample.seconds for sample in samples] - 1)
    assert np.median(errors) < 0.03
