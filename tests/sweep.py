"""Many cases, planned and run on eight devices and held against the unsharded result.

The cases are JAX's own primitive harnesses, programs drawn at random, or steps of third-party libraries. Each runs
under the cheapest plan, under the assignment that splits the most, and under assignments drawn at random, for the
cheapest plan of a small array is to replicate it. Cases are compiled many at a time in processes of their own, and
one at a time where that fails; a case that takes the process with it is one failed case. What is done is kept in a
file, a line per case, so that a run can be stopped and goes on where it was.

    python tests/sweep.py harness                   every case of the harnesses
    python tests/sweep.py vmapped                   each case eight times over, by vmap
    python tests/sweep.py random --count 2000       so many random programs
    python tests/sweep.py odd                       programs with callbacks, effects, kernels, odd types
    python tests/sweep.py packages                  steps of third-party libraries
    python tests/sweep.py harness --seconds 240     for so long; then it says how many are left
    python tests/sweep.py harness --only scatter    those whose name holds this
    python tests/sweep.py harness --again           those that failed, once more
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import Case
from odd_programs import odd_cases
from planned import Job, Outcome, outcomes
from random_programs import draw

RESULTS = Path(__file__).parents[1] / "build"
PATIENCE_SECONDS = 90.0
"""What a batch may take: now and then devices wait for each other for ever."""
BATCH = 8
"""Of each case, where they are vmapped."""
DRAWN = 3
"""Assignments drawn at random for each case and mesh."""
MESHES = ({"x": 2, "y": 4}, {"x": 8})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=tuple(SOURCES))
    parser.add_argument("--count", type=int, default=2000, help="of random programs")
    parser.add_argument("--results", type=Path, help="by default build/SOURCE.jsonl")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="forget what was done")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.source)
        return
    results = options.results or RESULTS / f"{options.source}.jsonl"
    results.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        results.unlink(missing_ok=True)
    done = read(results)
    if options.again:
        done = {name: outcome for name, outcome in done.items() if outcome.status in ("passed", "not run")}
    source = SOURCES[options.source]
    names = [name for name in source.names(options.count) if options.only in name]
    conductor = Conductor(options.source, results, time.monotonic() + options.seconds)
    left = conductor.conduct([name for name in names if name not in done], options.workers)
    chosen = set(names)
    sys.exit(report({name: outcome for name, outcome in read(results).items() if name in chosen}, left))


def read(results: Path) -> dict[str, Outcome]:
    """The last outcome of each case."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {outcome.name: outcome for line in lines for outcome in [Outcome(**json.loads(line))]}


class Conductor:
    """Gives workers their cases until the deadline, and writes down what came of them."""

    def __init__(self, source: str, results: Path, deadline: float):
        self.source, self.results, self.deadline = source, results, deadline
        self.waiting: queue.LifoQueue[list[str]] = queue.LifoQueue()
        self.writing = threading.Lock()

    def conduct(self, names: Sequence[str], workers: int) -> int:
        """How many are left in the end."""
        together = SOURCES[self.source].together
        for start in reversed(range(0, len(names), together)):
            self.waiting.put([*names[start : start + together]])
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self.feed) for _ in range(workers)]:
                done.result()
        return sum(map(len, self.waiting.queue))

    def feed(self) -> None:
        """One worker after another: a batch that ends its worker is taken apart."""
        while time.monotonic() < self.deadline and not self.waiting.empty():
            command = [sys.executable, __file__, self.source, "--worker"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            # Eight devices that call OpenBLAS at once, each with threads of its own, wait for each other, now and then
            # for ever.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            with subprocess.Popen(command, text=True, env=environment, **pipes) as worker:
                self.serve(worker)

    def serve(self, worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        while time.monotonic() < self.deadline:
            try:
                batch = self.waiting.get_nowait()
            except queue.Empty:
                break
            worker.stdin.write(json.dumps(batch) + "\n")
            worker.stdin.flush()
            patience = threading.Timer(PATIENCE_SECONDS, worker.kill)
            patience.start()
            answer = worker.stdout.readline()
            patience.cancel()
            if answer:
                self.write(Outcome(**outcome) for outcome in json.loads(answer))
            elif len(batch) == 1:
                self.write([Outcome(batch[0], "crashed", message=f"exit code {worker.wait()}")])
            else:
                for name in batch:
                    self.waiting.put([name])
            if not answer:
                return

    def write(self, outcomes: Iterable[Outcome]) -> None:
        with self.writing, self.results.open("a") as file:
            file.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)


def report(outcomes: dict[str, Outcome], left: int) -> int:
    """Prints the counts and what failed; the exit code."""
    ran = [outcome for outcome in outcomes.values() if outcome.status != "not run"]
    bad = [outcome for outcome in ran if outcome.status != "passed"]
    for outcome in sorted(bad, key=lambda outcome: (outcome.status, outcome.name)):
        print(f"{outcome.status:8} {outcome.name}: {outcome.message}")
    origins = Counter(outcome.origin for outcome in ran)
    known = (origins["registry"] + origins["shardy"]) / max(1, len(ran))
    print(
        f"{len(ran)} cases: {len(ran) - len(bad)} passed, "
        + ", ".join(f"{sum(o.status == status for o in bad)} {status}" for status in ("wrong", "failed", "crashed"))
        + f"; {len(outcomes) - len(ran)} do not run unsharded; {left} left to do"
    )
    print(
        f"rules: {origins['registry']} registry, {origins['shardy']} Shardy, {origins['replicated']} replicated "
        f"({known:.1%} known); {sum(outcome.shards > 1 for outcome in ran)} cases were split over devices; "
        f"{sum(outcome.seconds for outcome in outcomes.values()):.0f} s"
    )
    return 1 if bad or left else 0


def harness_names(count: int) -> list[str]:
    """The cases that JAX itself runs on CPU, in an order that mixes the families."""
    set_up()
    return sorted(harnesses(), key=lambda name: zlib.crc32(name.encode()))


def harnesses() -> dict[str, Any]:
    from jax._src.internal_test_util import test_harnesses

    return {harness.fullname: harness for harness in test_harnesses.all_harnesses if harness.filter("cpu")}


def set_up() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_enable_x64", True)


def work(source: str) -> None:
    """Runs the batches that are named on standard input; a line of outcomes for each on standard output."""
    set_up()
    warnings.simplefilter("ignore")
    maker = SOURCES[source].maker()
    for line in sys.stdin:
        found = outcomes([maker(name) for name in json.loads(line)])
        print(json.dumps(list(map(asdict, found))), flush=True)


def harness_maker(batch: int | None) -> Callable[[str], Job]:
    """What makes a case from its name: as it is, or so many of it by vmap."""
    found = harnesses()

    def make(name: str) -> Job:
        fn, seed = found[name].dyn_fun, zlib.crc32(name.encode())
        seeds = [(seed + row) % 2**32 for row in range(batch or 1)]
        args = [tuple(found[name].dyn_args_maker(np.random.RandomState(each))) for each in seeds]
        if batch is None:
            return Job(Case(name, fn, args[0]), MESHES, DRAWN)
        stacked = jax.tree.map(lambda *rows: (jnp if isinstance(rows[0], jax.Array) else np).stack(rows), *args)
        return Job(Case(name, jax.vmap(fn) if stacked else fn, stacked), MESHES[:1], 1)

    return make


def random_job(name: str) -> Job:
    jax.config.update("jax_enable_x64", False)
    program = draw(int(name))
    return Job(replace(program.case, name=name), (program.mesh,), 1)


def odd_job(name: str) -> Job:
    jax.config.update("jax_enable_x64", False)
    (case,) = (case for case in odd_cases() if case.name == name)
    return Job(case, MESHES, DRAWN)


def package_job(name: str) -> Job:
    jax.config.update("jax_enable_x64", False)
    return Job(packages()[name](), MESHES, 1)


def packages() -> Mapping[str, Callable[[], Case]]:
    from packages import PACKAGES  # which imports a dozen libraries

    return PACKAGES


@dataclass(frozen=True)
class Source:
    """Where cases come from.

    Attributes:
        names: of so many cases, where that can be chosen.
        maker: what makes a case from its name, in a worker.
        together: how many are compiled as one program.
    """

    names: Callable[[int], list[str]]
    maker: Callable[[], Callable[[str], Job]]
    together: int = 16


SOURCES = {
    "harness": Source(harness_names, lambda: harness_maker(None)),
    "vmapped": Source(harness_names, lambda: harness_maker(BATCH)),
    "random": Source(lambda count: list(map(str, range(count))), lambda: random_job),
    "odd": Source(lambda count: [case.name for case in odd_cases()], lambda: odd_job, together=4),
    "packages": Source(lambda count: list(packages()), lambda: package_job, together=1),
}


if __name__ == "__main__":
    main()
