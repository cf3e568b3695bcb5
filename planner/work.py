"""What an op does, on the whole array: floating-point operations, and which arrays it moves through memory.

Compilers fuse chains of elementwise ops into one loop that reads its inputs and writes its outputs once, so only what
stands at the ends of a kernel (see `planner.fusion`) costs memory traffic. How a program fuses depends a little on what
is resharded; here nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from costmodel.compute import selection_comparisons
from costmodel.topology import Backend
from planner.decisions import Decisions
from planner.fusion import Kernel
from planner.graph import TRANSPARENT, Atom, Body, Graph, Op, Value, aval_of, root_of
from planner.priority_fusion import kernels
from planner.rearrange import rearranged, turned
from planner.rules import kernel_flops
from planner.stages import CUMULATIVE
from planner.traits import JOINS, REDUCTIONS, joined_apart, one_window, renames, traits
from planner.updated import Updated, update_position, updates_in_place

CLASSES: Mapping[str, str] = {
    **dict.fromkeys(("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erfc"), "exponential"),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), "exponential"),
    **dict.fromkeys(("sin", "cos", "rsqrt", "erf_inv", "asin", "acos", "atan"), "sine"),
    **dict.fromkeys(("pow", "tan", "atan2", "cbrt", "lgamma", "digamma", "rem"), "power"),
    "rev": "rearrange rows",
    **dict.fromkeys(("scatter", "scatter-add", "scatter_mul", "scatter_min", "scatter_max"), "scatter"),
    **dict.fromkeys(CUMULATIVE, "cumulative"),
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), "window"),
    **dict.fromkeys(("select_and_scatter", "select_and_scatter_add"), "window gradient"),
    **dict.fromkeys(("random_bits", "threefry2x32"), "random"),
    **dict.fromkeys(("sort", "top_k"), "sort"),
    "gather": "gather",
    **dict.fromkeys(JOINS, "concatenate"),
    "pad": "pad",
}
"""The class of `costmodel.ELEMENT_CLASSES` that a primitive is in; most are in none."""

SLICES = frozenset({"slice", "dynamic_slice", "gather"})
"""Ops that touch no more of an operand than their result has."""


@dataclass(frozen=True, eq=False)
class Work:
    """What the unsharded op does.

    Attributes:
        flops: floating-point operations (a multiply-add is two).
        elements: by class, how many elements it works on in a way that takes more than moving them.
        dtype: the numpy name of the type that they are done in.
        reads, writes: positions of the operands and results that go through memory.
        update: the position of an operand that is written into the memory of the first one, of which no more than that
            is touched; or None.
        matmul: rows, contracted size and columns of a contraction, batch dimensions apart; or None.
        window: pixels of a convolution's kernel; 0 of other ops.
        transposed_itemsize: bytes of an element of a contraction's left operand that has what is summed over before its
            rows; 0 of other ops.
        rearranged: positions of operands that are copied into another order first, each with the dimensions over which
            elements come to lie in a row.
        turned: these of a transposition's operand; none of other ops.
        cold_reads, cold_writes: of these positions, those that the program touches first here: its arguments, where no
            op before has read the whole, and results that do not take over an argument's memory.
        crowding: how many times as many bytes as these all arguments and results have.
    """

    flops: float
    elements: Mapping[str, float]
    dtype: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    update: int | None
    matmul: tuple[float, float, float] | None
    window: float
    transposed_itemsize: int
    rearranged: Mapping[int, tuple[int, ...]]
    turned: tuple[int, ...]
    cold_reads: tuple[int, ...]
    cold_writes: tuple[int, ...]
    crowding: float

    def with_warm(self, op: Op, positions: Collection[int]) -> Work:
        """The same where these operands were touched before after all."""
        cold_reads = tuple(p for p in self.cold_reads if p not in positions)
        before, after = (
            touched_bytes(op, reads, self.cold_writes, self.update) for reads in (self.cold_reads, cold_reads)
        )
        return replace(self, cold_reads=cold_reads, crowding=self.crowding * before / after if after else 1.0)


def flops(op: Op) -> float:
    """Floating-point operations of the whole op."""
    if (own := kernel_flops(op.primitive)) is not None:
        return float(own([aval_of(atom) for atom in op.operands], [aval_of(atom) for atom in op.results], **op.params))
    made = math.prod(op.results[0].shape) if op.results else 0
    match op.name:
        case "dot_general":
            (contracted, _), _ = op.params["dimension_numbers"]
            return 2.0 * made * math.prod(aval_of(op.operands[0]).shape[dim] for dim in contracted)
        case "conv_general_dilated":
            kernel = aval_of(op.operands[1]).shape
            out_features = kernel[op.params["dimension_numbers"].rhs_spec[0]]
            return 2.0 * made * math.prod(kernel) / out_features
    return float(max([made, *(math.prod(aval_of(atom).shape) for atom in op.operands)], default=0))


def elements(op: Op, backend: Backend) -> Mapping[str, float]:
    """By class, how many elements an op works on; of a window all under it, of a sort all comparisons."""
    if not op.operands or not op.results:
        return {}
    operand, made = aval_of(op.operands[0]).shape, math.prod(op.results[0].shape)
    if op.name in REDUCTIONS or op.name in ("argmax", "argmin"):
        rows = len(operand) - 1 in op.params["axes"]
        return {"sum along rows" if rows else "sum along columns": float(math.prod(operand))}
    name = CLASSES.get(op.name)
    match name:
        case None:
            return {}
        case "concatenate" if backend == "cpu" and joined_apart(op):  # of a roll its two parts are copied before
            return {"rearrange rows": float(made * (2 if op.name == "roll" else 1))}
        case "window":
            return {name: float(made * math.prod(op.params["window_dimensions"]))}
        case "window gradient":
            return {name: float(math.prod(operand) * math.prod(op.params["window_dimensions"]))}
        case "sort" if op.name == "top_k" and backend == "cpu":
            length = operand[op.params["axis"]]
            return {"selection": math.prod(operand) / max(1, length) * selection_comparisons(length, op.params["k"])}
        case "sort":
            length = operand[op.params["axis" if op.name == "top_k" else "dimension"]]
            return {name: math.prod(operand) * math.log2(max(2, length))}
        case "gather" | "scatter" if one_window(op):
            return {}
        case "scatter":
            return {name: float(math.prod(aval_of(op.operands[2]).shape))}
        case "cumulative":
            return {name: float(math.prod(operand))}
    return {name: float(made)}


def works(graph: Graph, decisions: Decisions, backend: Backend, donors: Sequence[int | None]) -> Mapping[Op, Work]:
    """The work of every op that does any; constant values and their makers do none.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    found: dict[Op, Work] = {}
    arguments = set(graph.body.inputs)
    in_and_out = in_and_out_bytes(graph)
    lines = _lines(graph.body, {})
    results = zip(lines[0].outputs, donors, strict=True)
    fresh = {result for result, donor in results if donor is None and isinstance(result, Value)}
    donated = {graph.body.inputs[donor] for donor in donors if donor is not None}
    updated = Updated(graph)
    touched: set[Atom] = set()

    def is_free(atom: Atom, op: Op) -> bool:
        """Whether an op may write over an operand."""
        if atom in arguments:
            return atom in donated
        return not (_is_constant(atom, decisions) or updated.needed_elsewhere(op))

    for line in lines:
        kernels = line.kernels(backend)
        roots = {kernel.root for kernel in kernels}
        reads: dict[int, list[int]] = {}
        in_place = {
            kernel.root
            for kernel in kernels
            if (first := line.updated(kernel)) is not None and is_free(first, line.ops[kernel.root])
        }
        for kernel in kernels:
            for index, position in line.outer_operands(kernel, kernel.root in in_place):
                reads.setdefault(index, []).append(position)
        for index, op in enumerate(line.ops):
            if op.bodies or renames(op) or all(value in decisions.constant for value in op.results):
                continue
            copied = rearranged(op) if backend == "cpu" else {}
            read = tuple(p for p in reads.get(index, ()) if not _is_constant(line.atoms[index][p], decisions))
            written = tuple(p for p, value in enumerate(op.results) if value.rank) if index in roots else ()
            of_call = {p: atom for p in read if (atom := line.atoms[index][p]) in arguments and atom not in touched}
            cold_reads = tuple(of_call)
            if op.name not in SLICES:  # of which the next may take another part
                touched.update(of_call.values())
            update = update_position(op) if index in in_place else None
            of_caller = update is not None and line.atoms[index][0] in arguments
            cold_writes = tuple(p for p in written if of_caller or op.results[p] in fresh)
            own = touched_bytes(op, cold_reads, cold_writes, update)
            found[op] = Work(
                flops(op),
                elements(op, backend),
                _dtype(op),
                read,
                written,
                update,
                matmul_sizes(op),
                window(op),
                transposed_itemsize(op) if 0 not in copied else 0,
                copied,
                turned(op),
                cold_reads,
                cold_writes,
                in_and_out / own if own else 1.0,
            )
    return found


@dataclass(frozen=True)
class _Line:
    """The ops of one body in a row, those of calls that are seen through among them.

    Attributes:
        atoms: for each op its operands, by the names that they had when they were made.
        outputs: what the body returns.
    """

    ops: list[Op]
    atoms: list[tuple[Atom, ...]]
    outputs: tuple[Atom, ...]

    def kernels(self, backend: Backend) -> list[Kernel]:
        made = self._makers
        numbers: dict[Atom, int] = {}
        operands = [
            [
                made[atom] if atom in made else numbers.setdefault(atom, -1 - len(numbers))
                for atom in atoms
                if isinstance(atom, Value)
            ]
            for atoms in self.atoms
        ]
        needed = {made[atom] for atom in self.outputs if isinstance(atom, Value) and atom in made}
        needed.update(index for index, op in enumerate(self.ops) if op.effects)
        behaviour = [
            traits(op, most_elements(op), backend).reading(isinstance(atom, Value) for atom in atoms)
            for op, atoms in zip(self.ops, self.atoms, strict=True)
        ]
        inputs = list(numbers)

        def nbytes(number: int) -> float:
            return _nbytes(self.ops[number].results if number >= 0 else [inputs[-1 - number]])

        return kernels(backend, behaviour, operands, sorted(needed), nbytes, alike=True)

    def updated(self, kernel: Kernel) -> Value | None:
        """The array in memory of which the last op of a kernel writes a part anew."""
        first = self.atoms[kernel.root][0] if updates_in_place(self.ops[kernel.root]) else None
        return first if isinstance(first, Value) and self._makers.get(first) not in kernel.members else None

    def outer_operands(self, kernel: Kernel, in_place: bool) -> list[tuple[int, int]]:
        """The ops and positions at which a kernel reads what it did not make, each array once, by who reads most of it.

        Args:
            in_place: whether the last op writes into its first operand, and so does not read that.
        """
        made = self._makers
        found: dict[Atom, list[tuple[int, int]]] = {}
        for index in sorted(kernel.members):
            for position, atom in enumerate(self.atoms[index]):
                if in_place and (index, position) == (kernel.root, 0):
                    continue
                if isinstance(atom, Value) and atom.rank and made.get(atom) not in kernel.members:
                    found.setdefault(atom, []).append((index, position))
        return [max(places, key=lambda place: read_bytes(self.ops[place[0]], place[1])) for places in found.values()]

    @cached_property
    def _makers(self) -> dict[Atom, int]:
        return {value: index for index, op in enumerate(self.ops) for value in op.results}


def _lines(body: Body, roots: dict[Value, Atom]) -> list[_Line]:
    """The body's own line, and those of the loops and branches in it."""
    ops: list[Op] = []
    inner: list[Body] = []

    def add(part: Body) -> None:
        for op in part.ops:
            if op.primitive in TRANSPARENT:
                roots.update(zip(op.bodies[0].inputs, op.operands, strict=True))
                add(op.bodies[0])
                roots.update(zip(op.results, op.bodies[0].outputs, strict=True))
                continue
            if renames(op) and not op.effects:
                roots.update(zip(op.results, op.operands, strict=False))
            ops.append(op)
            inner.extend(op.bodies)

    add(body)
    atoms = [tuple(root_of(atom, roots) for atom in op.operands) for op in ops]
    own = _Line(ops, atoms, tuple(root_of(atom, roots) for atom in body.outputs))
    return [own, *(line for each in inner for line in _lines(each, roots))]


def read_bytes(op: Op, position: int) -> float:
    """What an op reads of the whole of an operand."""
    nbytes = _nbytes([op.operands[position]])
    return min(nbytes, _nbytes(op.results)) if op.name in SLICES else nbytes


def written_bytes(op: Op, position: int, update: int | None) -> float:
    """What an op writes of the whole of a result; see `Work.update`."""
    return _nbytes([op.results[position] if update is None else op.operands[update]])


def touched_bytes(op: Op, reads: Iterable[int], writes: Iterable[int], update: int | None) -> float:
    """What an op reads and writes of the whole of these operands and results; see `Work.update`."""
    return sum(read_bytes(op, p) for p in reads) + sum(written_bytes(op, p, update) for p in writes)


def in_and_out_bytes(graph: Graph) -> float:
    """Of all arguments and results of the program."""
    return _nbytes((*graph.whole.body.inputs, *graph.whole.body.outputs))


def _nbytes(atoms: Iterable[Atom]) -> float:
    return float(sum(atom.nbytes for atom in atoms if isinstance(atom, Value)))


def most_elements(op: Op) -> int:
    """Of the largest array that an op reads or makes, whole."""
    return max((math.prod(aval_of(atom).shape) for atom in (*op.operands, *op.results)), default=0)


def _is_constant(atom: Atom, decisions: Decisions) -> bool:
    return not isinstance(atom, Value) or atom in decisions.constant


def matmul_sizes(op: Op) -> tuple[float, float, float] | None:
    """Rows, contracted size and columns of a contraction; None for other ops."""
    if op.name not in ("dot_general", "conv_general_dilated"):
        return None
    elements = float(math.prod(op.results[0].shape))
    right = aval_of(op.operands[1]).shape
    if op.name == "dot_general":
        (_, contracted), (_, batch) = op.params["dimension_numbers"]
        columns = math.prod(size for dim, size in enumerate(right) if dim not in (*contracted, *batch))
        elements /= math.prod(right[dim] for dim in batch)
    else:
        columns = right[op.params["dimension_numbers"].rhs_spec[0]]
    inner = flops(op) / (2.0 * max(1, math.prod(op.results[0].shape)))
    return elements / max(1, columns), inner, float(columns)


def window(op: Op) -> float:
    """Pixels of a convolution's kernel; 0 for other ops."""
    if op.name != "conv_general_dilated":
        return 0.0
    return float(math.prod(aval_of(op.operands[1]).shape[dim] for dim in op.params["dimension_numbers"].rhs_spec[2:]))


def transposed_itemsize(op: Op) -> int:
    """Bytes of an element of a contraction's left operand that has what is summed over before its rows; else 0."""
    if op.name != "dot_general":
        return 0
    left = aval_of(op.operands[0])
    (contracted, _), (batch, _) = op.params["dimension_numbers"]
    free = [dim for dim in range(len(left.shape)) if dim not in (*contracted, *batch)]
    if not (contracted and free) or max(contracted) > min(free):
        return 0
    return int(left.dtype.itemsize)


def _dtype(op: Op) -> str:
    """The type of the operands: what a matrix unit multiplies in, whatever it accumulates in."""
    for atom in op.operands:
        if isinstance(atom, Value) or aval_of(atom).shape:
            return str(aval_of(atom).dtype)
    return "float32"
