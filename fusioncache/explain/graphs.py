"""In what two canonical graphs differ: the roots, without what merely follows from them."""

from __future__ import annotations

from dataclasses import replace

from fusioncache.explain.change import NONE, Change, listed, ordinal
from fusioncache.explain.colours import Nodes
from fusioncache.explain.inputs import Inputs
from fusioncache.explain.literals import argument_changes
from fusioncache.explain.pairing import Met, Pairing, type_of
from fusioncache.explain.types import aspects
from fusioncache.explain.words import op_text, short_names, value_text
from fusioncache.ir import Graph, Op, TensorType, operands, refs_in
from fusioncache.ir.ops import op_traits
from fusioncache.template.text import type_text


def graph_changes(a: Graph, b: Graph) -> tuple[Change, ...]:
    """In what two graphs differ, beginning with the inputs; none if they are one and the same function."""
    pairing = Pairing(a, b)
    changes = _Changes(pairing).all()
    if not changes and pairing.swapped:
        # Nothing else differs, so these are operands that cannot be exchanged here.
        return (_order(pairing, min(pairing.swapped)),)
    return changes


class _Changes:
    def __init__(self, pairing: Pairing):
        self.pairing = pairing
        self.inputs = Inputs(pairing)
        self.found: list[Change] = []

    def all(self) -> tuple[Change, ...]:
        self._ops_of_one()
        self.found += [_replaced(self.pairing, met) for met in self.pairing.replaced]
        self.found += [_order(self.pairing, node) for node in self.pairing.exchanged]
        for node_a, node_b in self.pairing.to_b.items():
            self._inside(node_a, node_b)
        if not self.found or not (self.pairing.only_a or self.pairing.only_b or self.pairing.replaced):
            self.found += _rewired(self.pairing)
        ordered = sorted(self.found, key=lambda change: change.op or 0)
        return (*self.inputs.changes, *ordered, *self._outputs())

    def _ops_of_one(self) -> None:
        a, b = self.pairing.a, self.pairing.b
        for node in self.pairing.only_a:
            if not self._follows(a.op_at[node][1]):
                self.found.append(Change("ops", "an op", op_text(a, node), NONE, a.number(node)))
        for node in self.pairing.only_b:
            if not self._follows(b.op_at[node][1]):
                self.found.append(Change("ops", "an op", NONE, op_text(b, node), b.number(node)))

    def _follows(self, op: Op) -> bool:
        return bool(self.inputs.changes) and op_traits(op.name).follows_types

    def _inside(self, node_a: int, node_b: int) -> None:
        """What differs in one op of both graphs: a literal, or the types of its results if nothing above says why."""
        op_a, op_b = self.pairing.a.op(node_a), self.pairing.b.op(node_b)
        if op_a is None or op_b is None or op_a.name != op_b.name:
            return
        as_before = _operand_types(self.pairing.a, op_a) == _operand_types(self.pairing.b, op_b)
        changes = argument_changes(self.pairing.a, node_a, op_a, op_b)
        told = [change for change in changes if not self._is_consequence(change, op_a, as_before)]
        if not changes and as_before:
            told = _result_changes(self.pairing, node_a, op_a, op_b)
        self.found += [replace(change, op=self.pairing.a.number(node_a)) for change in told]

    def _is_consequence(self, change: Change, op: Op, as_before: bool) -> bool:
        if self.inputs.changes and self.inputs.explain(change.a, change.b):
            return True
        if change.ingredient != "attributes":
            return False
        lonely = bool(self.inputs.changes) and not list(operands(op))
        return lonely or not as_before

    def _outputs(self) -> list[Change]:
        a, b = self.pairing.a, self.pairing.b
        left = [Change("outputs", "an output", value_text(a, value), NONE) for value in self.pairing.outputs_a]
        return left + [Change("outputs", "an output", NONE, value_text(b, value)) for value in self.pairing.outputs_b]


def _operand_types(nodes: Nodes, op: Op) -> list[str]:
    arguments = (*op.args, *(arg for _, arg in op.kwargs))
    types = (type_of(nodes, value) for arg in arguments for _, value in refs_in(arg))
    return sorted(type_text(type_, anonymous=True) for type_ in types)


def _result_changes(pairing: Pairing, node: int, op_a: Op, op_b: Op) -> list[Change]:
    where = f"the result of {op_text(pairing.a, node)}"
    pairs = zip(op_a.outputs, op_b.outputs, strict=False)
    tensors = [pair for pair in pairs if all(isinstance(type_, TensorType) for type_ in pair)]
    return [Change("ops", f"the {name} of {where}", a, b) for pair in tensors for name, a, b in aspects(*pair)]


def _replaced(pairing: Pairing, met: Met) -> Change:
    op_a, op_b = pairing.a.op(met.a), pairing.b.op(met.b)
    if op_a and op_b:
        which = pairing.a.number(met.a)
        return Change("ops", f"op {which}", *short_names(op_a, op_b), which)
    where = "an output" if met.user is None else f"an operand of {op_text(pairing.a, met.user)}"
    number = pairing.a.number(met.user) if met.user is not None else None
    return Change("ops", where, value_text(pairing.a, met.a), value_text(pairing.b, met.b), number)


def _rewired(pairing: Pairing) -> list[Change]:
    """Where values are used otherwise: one in place of two, or one in the place of another."""
    found: dict[int | None, list[Met]] = {}
    for met in pairing.rewired:
        found.setdefault(met.user, []).append(met)
    return [_rewired_in(pairing, user, mets) for user, mets in found.items()]


def _rewired_in(pairing: Pairing, user: int | None, mets: list[Met]) -> Change:
    a, b, met = pairing.a, pairing.b, mets[0]
    number = a.number(user) or None if user is not None else None
    partner, back = pairing.to_b.get(a.node_of[met.a]), pairing.to_a.get(b.node_of[met.b])
    if partner is None or back is None:
        return Change("ops", *_merged(pairing, met, partner, back), number)
    if user is None or number is None:
        return Change("outputs", "an output", value_text(a, met.a), value_text(b, met.b))
    if len(mets) > 1:
        uses = [value_text(a, item.a) for item in mets]
        return Change(
            "ops", f"the order of the operands of {op_text(a, user)}", listed(uses), listed(uses[::-1]), number
        )
    where = f"the {ordinal(int(met.path) + 1)} operand" if met.path.isdecimal() else "an operand"
    return Change("ops", f"{where} of {op_text(a, user)}", value_text(a, met.a), value_text(a, back), number)


def _merged(pairing: Pairing, met: Met, partner: int | None, back: int | None) -> tuple[str, str, str]:
    """What to say of one value that stands for two of the other graph."""
    a, b = pairing.a, pairing.b
    kind = "results" if a.number(met.a) or b.number(met.b) else "inputs"
    of_a, of_b = (
        sorted({met.a, met.a if back is None else back}),
        sorted({met.b, met.b if partner is None else partner}),
    )
    texts = listed([value_text(a, value) for value in of_a]), listed([value_text(b, value) for value in of_b])
    return f"which {kind} are one and the same", *texts


def _order(pairing: Pairing, node: int) -> Change:
    used = [value_text(pairing.a, value) for path, value in operands(pairing.a.op_at[node][1]) if path in ("0", "1")]
    where = f"the order of the operands of {op_text(pairing.a, node)}"
    return Change("ops", where, listed(used), listed(used[::-1]), pairing.a.number(node))
