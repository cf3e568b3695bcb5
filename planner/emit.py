"""From a plan to ordinary JAX: the same program with `with_sharding_constraint` on every array and every step between.

XLA's propagation fills in what a program leaves open, and then the plan is no longer the plan. So every operand and
every result is constrained, and a change of layout goes one elementary step at a time, each with a constraint of its
own; constraints cost nothing at run time. Loops, branches, `remat` and custom derivatives are bound again with bodies
that are constrained inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout as MemoryLayout
from jax.experimental.layout import with_layout_constraint
from jax.extend import core as jex_core
from jax.extend.core import primitives as jex_primitives
from jax.sharding import Mesh, NamedSharding

from planner._jax_compat import as_written
from planner.assignment import Assignment
from planner.decisions import Use
from planner.graph import TRANSPARENT, Atom, Body, Graph, Op, Value, root_of, solve_operands
from planner.layout import Layout, to_spec
from planner.reshard import Step
from planner.rules import roll, roll_p, ruled_call_p


def emit(assignment: Assignment, mesh: Mesh) -> Callable[..., list[Any]]:
    """The annotated function, over flat arguments to flat results, laid out on `mesh` (whose axes must be Auto)."""
    emitter = _Emitter(assignment, mesh)
    body = emitter.graph.whole.body
    layouts = [assignment.home(value) for value in body.inputs]

    def run(*args: Any) -> list[Any]:
        # Even scalars: on a mesh with Explicit axes this is what makes them Auto.
        return emitter.run(body, [emitter.pin(arg, layout) for arg, layout in zip(args, layouts, strict=True)])

    return run


class _Scope:
    """The arrays of one body while it is traced.

    Attributes:
        arrays: every value in the layout it was made in.
        copies: per value, the layouts in which it is there already.
    """

    def __init__(self) -> None:
        self.arrays: dict[Value, Any] = {}
        self.copies: dict[Value, dict[Layout, Any]] = {}


class _Emitter:
    def __init__(self, assignment: Assignment, mesh: Mesh):
        self.assignment = assignment
        self.decisions = assignment.priced.decisions
        self.graph = assignment.priced.graph
        self.constants = self.graph.whole.constants
        self.aliases = dict(_aliases(self.graph.whole))
        self.mesh = mesh

    def run(self, body: Body, args: Sequence[Any]) -> list[Any]:
        """Evaluates a body; its outputs as the plan wants them where it says so."""
        scope = _Scope()
        for value, arg in zip(body.inputs, args, strict=True):
            if arg is not None:
                scope.arrays[value] = self.constrain(arg, self.assignment.home(value))
        for op in body.ops:
            with as_written(op.source_info):
                results = self.apply(op, scope)
                for value, result in zip(op.results, results, strict=True):
                    scope.arrays[value] = self.constrain(result, self.assignment.home(value))
        uses = self.output_uses(body)
        return [self.fetch(atom, use, scope) for atom, use in zip(body.outputs, uses, strict=True)]

    def output_uses(self, body: Body) -> Sequence[Use | None]:
        if body is self.graph.whole.body:
            return self.assignment.priced.output_uses
        return self.decisions.outputs.get(self.graph.here(body), (None,) * len(body.outputs))

    def apply(self, op: Op, scope: _Scope) -> Sequence[Any]:
        """Binds one op on operands laid out as its strategy wants them."""
        here = self.graph.here(op)
        uses = self.decisions.operands.get(here, (None,) * len(op.operands))
        operands = [self.fetch(atom, use, scope) for atom, use in zip(op.operands, uses, strict=True)]
        if op.primitive in REWRITTEN:
            return REWRITTEN[op.primitive](op, *operands)
        if op.primitive in ON_SHARDS:
            run = ON_SHARDS[op.primitive](op)
            return self.on_shards(run, here, operands) if here in self.decisions.members else run(*operands)
        params, extra = self.params(op)
        results = op.primitive.bind(*extra, *operands, **op.primitive.get_bind_params(params))
        return results if op.primitive.multiple_results else [results]

    def on_shards(self, fn: Callable[..., Sequence[Any]], op: Op, operands: Sequence[Any]) -> Sequence[Any]:
        """What an op does, on each device's shards; partial results are summed."""
        index, member = self.decisions.members[op]
        strategy = self.assignment.strategy(index)
        specs = [
            [to_spec(strategy.layout(member.dims(dims))) for dims in side]
            for side in (member.rule.operands, member.rule.results)
        ]
        over = strategy.axes_on(member.reduced)

        def run(*shards: Any) -> list[Any]:
            made = list(fn(*shards))
            return lax.psum(made, over) if over else made

        mapped = jax.shard_map(run, mesh=self.mesh, in_specs=tuple(specs[0]), out_specs=specs[1], check_vma=False)
        return mapped(*operands)

    def params(self, op: Op) -> tuple[Mapping[str, Any], Sequence[Any]]:
        """The op's parameters with constrained bodies, and arrays to pass before the operands."""
        if not op.bodies:
            return op.params, ()
        if op.primitive is lax.linear_solve_p:
            solve = self.closed(op.bodies[0], solve_operands(op.params))
            return {**op.params, "jaxprs": op.params["jaxprs"]._replace(solve=solve)}, ()
        bodies = [self.closed(body) for body in op.bodies]
        if op.primitive is jex_primitives.remat_p:
            (body,) = bodies
            jaxpr = body.jaxpr.replace(constvars=[], invars=[*body.jaxpr.constvars, *body.jaxpr.invars])
            prevented = op.params["prevent_cse"]
            if isinstance(prevented, tuple):
                prevented = (False,) * len(body.consts) + prevented
            return {**op.params, "jaxpr": jaxpr, "prevent_cse": prevented}, body.consts
        if op.primitive is jex_primitives.while_p:
            return {**op.params, "cond_jaxpr": bodies[0], "body_jaxpr": bodies[1]}, ()
        if op.primitive is jex_primitives.cond_p:
            return {**op.params, "branches": tuple(bodies)}, ()
        return {**op.params, TRANSPARENT.get(op.primitive, "jaxpr"): bodies[0]}, ()

    def closed(self, body: Body, read: Sequence[int] | None = None) -> jex_core.ClosedJaxpr:
        """The body as a jaxpr of all its inputs, or of those that it reads, in that order."""
        read = range(len(body.inputs)) if read is None else read

        def run(*args: Any) -> list[Any]:
            given = dict(zip(read, args, strict=True))
            return self.run(body, [given.get(position) for position in range(len(body.inputs))])

        return jax.make_jaxpr(run)(*(body.inputs[position].struct() for position in read))

    def fetch(self, atom: Atom, use: Use | None, scope: _Scope) -> Any:
        """An operand, resharded if its use wants it otherwise than it was made."""
        if isinstance(atom, jex_core.Literal):
            return atom.val
        array = scope.arrays[atom] if atom in scope.arrays else self.constants[atom]
        if use is None:
            return array
        value = root_of(atom, self.aliases)
        copies = scope.copies.setdefault(value, {self.assignment.home(value): array})
        return self.assignment.route(use, value, copies, self.step)

    def step(self, array: Any, step: Step) -> Any:
        return self.constrain(array, step.layout)

    def constrain(self, array: Any, layout: Layout) -> Any:
        """An array as laid out so; scalars need no saying."""
        return self.pin(array, layout) if layout else array

    def pin(self, array: Any, layout: Layout) -> Any:
        return lax.with_sharding_constraint(array, NamedSharding(self.mesh, to_spec(layout)))


def _aliases(graph: Graph) -> Iterator[tuple[Value, Value]]:
    for op, _ in graph.walk():
        if op.primitive in TRANSPARENT:
            (body,) = op.bodies
            for name, atom in (
                *zip(body.inputs, op.operands, strict=True),
                *zip(op.results, body.outputs, strict=True),
            ):
                if isinstance(atom, Value):
                    yield name, atom


def _transform(op: Op) -> Callable[..., Sequence[Any]]:
    """A Fourier transform from rows to rows.

    XLA lets a transform read and write in whatever order collectives around it work best in, and then its CPU backend
    refuses any but this one.
    """
    return lambda array: [_in_rows(op.primitive.bind(_in_rows(array), **op.params))]


def _slice(op: Op, array: Any, *starts: Any) -> Sequence[Any]:
    """A slice whose beginning has been moved to where all of it lies inside the array.

    The op is defined to do so itself; but where its result is sliced again, as it is to split it, XLA's simplifier
    makes one slice of the two and adds their beginnings up, before either is moved.
    """
    return [op.primitive.bind(array, *_inside(starts, array.shape, op.params["slice_sizes"]), **op.params)]


def _gather(op: Op, array: Any, indices: Any) -> Sequence[Any]:
    """Slices whose beginnings have been moved likewise: XLA makes a slice of a gather of one."""
    numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    axes = numbers.start_index_map
    if op.params["mode"] is not lax.GatherScatterMode.FILL_OR_DROP and any(sizes[axis] > 1 for axis in axes):
        starts = [indices[..., position] for position in range(len(axes))]
        found = _inside(starts, [array.shape[axis] for axis in axes], [sizes[axis] for axis in axes])
        indices = jnp.stack(found, axis=-1)
    return [op.primitive.bind(array, indices, **op.params)]


def _update(op: Op, array: Any, update: Any, *starts: Any) -> Sequence[Any]:
    """An update of a slice, with its beginning moved likewise.

    XLA's partitioner, where it splits a dimension in which the update has one element, drops an update that begins
    outside.
    """
    return [op.primitive.bind(array, update, *_inside(starts, array.shape, update.shape), **op.params)]


def _inside(starts: Sequence[Any], sizes: Sequence[int], widths: Sequence[int]) -> list[Any]:
    found = []
    for start, size, width in zip(map(jnp.asarray, starts), sizes, widths, strict=True):
        last = min(size - width, jnp.iinfo(start.dtype).max)
        found.append(lax.clamp(jnp.asarray(0, start.dtype), start, jnp.asarray(last, start.dtype)))
    return found


def _in_rows(array: Any) -> Any:
    """The array in row-major memory."""
    return with_layout_constraint(array, MemoryLayout(tuple(range(array.ndim))))


REWRITTEN: Mapping[jex_core.Primitive, Callable[..., Sequence[Any]]] = {
    jex_primitives.sharding_constraint_p: lambda op, array: [array],
    jex_primitives.dynamic_slice_p: _slice,
    jex_primitives.dynamic_update_slice_p: _update,
    jex_primitives.gather_p: _gather,
    roll_p: lambda op, array: [roll(array, **op.params)],
}
"""What is emitted in place of an op, given the op and its operands; what a constraint asks for, the layouts do."""

ON_SHARDS: Mapping[jex_core.Primitive, Callable[[Op], Callable[..., Sequence[Any]]]] = {
    ruled_call_p: lambda op: op.params["ruled"].fn,
    jex_primitives.fft_p: _transform,
    jex_primitives.top_k_p: lambda op: functools.partial(op.primitive.bind, **op.params),
}
"""What is run on each device's shards by `shard_map`, for XLA would gather for it; by primitive, how it runs."""
