"""A tree as words that a kernel runs (formats/filter_program.py).

The kernel reads only what it reads exactly as Java does: short numbers in ASCII, and texts by their bytes.
For any other value of a message it asks for the result of the closures. A tree with a rare node, such as the
comparison of two conditions, has no program at all.
"""

from __future__ import annotations

import struct

from broker_store.formats import filter_program as p
from broker_store.messages import FilterProgram
from broker_store.sql92 import evaluation, nodes
from broker_store.sql92.errors import EvaluationError
from broker_store.sql92.nodes import Node

MAX_NAMES = 16
# Bytes of a text that CONTAINS compares at each place, in the time of a step
_SEARCHED_PER_STEP = 4
_KINDS = {"integer": p.KIND_INTEGER, "long": p.KIND_LONG, "double": p.KIND_DOUBLE}
_SEARCHES = {"CONTAINS": p.SEARCH_CONTAINS, "STARTSWITH": p.SEARCH_STARTS, "ENDSWITH": p.SEARCH_ENDS}
_ORDERS = {
    ">": p.ORDER_GREATER,
    ">=": p.ORDER_GREATER | p.ORDER_EQUAL,
    "<": p.ORDER_LESS,
    "<=": p.ORDER_LESS | p.ORDER_EQUAL,
}
_RESULTS = {False: p.FALSE, True: p.TRUE, None: p.NULL}


class _NoProgramError(Exception):
    """The tree has a node that kernels do not run."""


def program_of(tree: Node, names: tuple[str, ...]) -> FilterProgram | None:
    """Return the program of a tree that reads the properties `names`; None if only closures can run it."""
    if len(names) > MAX_NAMES:
        return None
    writer = _Writer(names)
    try:
        writer.write(tree, 0)
        return writer.finish()
    except (_NoProgramError, UnicodeEncodeError):
        return None


class _Writer:
    def __init__(self, names: tuple[str, ...]):
        self._slots = {name: number for number, name in enumerate(names)}
        self._code: list[list[int]] = []
        self._tables: list[
            int
        ] = []  # texts of IN; instructions refer to them by position here until `finish`
        self._in: list[list[int]] = []  # instructions with such a reference
        self._pool = bytearray()
        self._levels = 0
        self._searched = 0  # steps for the texts of CONTAINS

    def finish(self) -> FilterProgram:
        names = [self._text(name) for name in self._slots]
        names_at = p.HEAD_WORDS
        code_at = names_at + 2 * len(names)
        code_end = code_at + p.INSTRUCTION_WORDS * len(self._code)
        for instruction in self._in:
            instruction[2] += code_end
        slots_at = code_end + len(self._tables)
        flags_at = slots_at + 2 * len(names)
        pool_at = flags_at + self._levels
        head = [0] * p.HEAD_WORDS
        head[p.HEAD_STEPS] = len(self._code) + len(self._tables) // 2 + self._searched
        head[p.HEAD_NAMES], head[p.HEAD_NAMES_AT] = len(names), names_at
        head[p.HEAD_CODE_AT], head[p.HEAD_CODE_END] = code_at, code_end
        head[p.HEAD_SLOTS_AT], head[p.HEAD_FLAGS_AT], head[p.HEAD_POOL_AT] = slots_at, flags_at, pool_at
        words = [*head]
        for name in names:
            words += name
        for instruction in self._code:
            if instruction[0] in (p.OP_AND, p.OP_OR):
                instruction[2] = code_at + p.INSTRUCTION_WORDS * instruction[2]
            words += instruction
        return FilterProgram((*words, *self._tables), bytes(self._pool))

    def _put(self, operation: int, *operands: int) -> list[int]:
        instruction = [operation, *operands]
        instruction += [0] * (p.INSTRUCTION_WORDS - len(instruction))
        self._code.append(instruction)
        return instruction

    def _text(self, text: str) -> tuple[int, int]:
        """Put a text into the pool; return its place and bytes."""
        if "\ufffd" in text:
            # It stands for any invalid bytes of a message's property.
            raise _NoProgramError
        raw = text.encode()
        at = len(self._pool)
        self._pool += raw
        return at, len(raw)

    def write(self, node: Node, level: int) -> None:
        """Write the instructions of a condition. `level` is the number of ANDs and ORs around it."""
        if not any(isinstance(each, (nodes.Property, nodes.Cast, nodes.In)) for each in nodes.walk(node)):
            try:
                value = evaluation.evaluator(node)({})
            except EvaluationError:
                raise _NoProgramError from None
            assert value is None or isinstance(value, bool)
            self._put(p.OP_CONSTANT, _RESULTS[value])
            return
        match node:
            case nodes.Cast(name):
                self._put(p.OP_CAST, self._slots[name])
            case nodes.Not(of, times):
                self.write(of, level)
                if times % 2:
                    self._put(p.OP_NOT)
            case nodes.Logic(word, operands):
                self._write_logic(word, operands, level)
            case nodes.Equal(left, right):
                self._write_equal(left, right)
            case nodes.Compare():
                self._write_compare(node)
            case nodes.In(name, values, negated):
                at = len(self._tables)
                for value in dict.fromkeys(values):
                    self._tables += self._text(value)
                count = (len(self._tables) - at) // 2
                self._in.append(self._put(p.OP_IN, self._slots[name], at, count, int(negated)))
            case nodes.Search(word, nodes.Property(name), text, negated) if text:
                at, size = self._text(text)
                self._put(p.OP_SEARCH, self._slots[name], _SEARCHES[word], at, size, int(negated))
                if word == "CONTAINS":
                    self._searched += size // _SEARCHED_PER_STEP
            case _:
                raise _NoProgramError

    def _write_logic(self, word: nodes.LogicWord, operands: tuple[Node, ...], level: int) -> None:
        self._levels = max(self._levels, level + 1)
        self._put(p.OP_BEGIN, level)
        steps = []
        for operand in operands:
            self.write(operand, level + 1)
            steps.append(self._put(p.OP_AND if word == "AND" else p.OP_OR, level))
        self._put(p.OP_END, level, p.TRUE if word == "AND" else p.FALSE)
        for step in steps:
            step[2] = len(self._code)

    def _write_equal(self, left: Node, right: Node) -> None:
        match left, right:
            case nodes.Property(name), nodes.Property(other):
                self._put(p.OP_EQUAL_PROPERTIES, self._slots[name], self._slots[other])
            case nodes.Property(name), nodes.Constant("null"):
                self._put(p.OP_IS_NULL, self._slots[name])
            case nodes.Property(name), nodes.Constant("boolean", value):
                self._put(p.OP_EQUAL_BOOLEAN, self._slots[name], int(bool(value)))
            case nodes.Property(name), nodes.Constant("text", str(value)):
                self._put(p.OP_EQUAL_TEXT, self._slots[name], *self._text(value), p.NULL)
            case nodes.Constant("text", str(value)), nodes.Property(name):
                self._put(p.OP_EQUAL_TEXT, self._slots[name], *self._text(value), p.FALSE)
            case nodes.Property(name), number:
                self._write_number(name, p.ORDER_EQUAL, number, p.NULL)
            case number, nodes.Property(name):
                self._write_number(name, p.ORDER_EQUAL, number, p.FALSE)
            case _:
                raise _NoProgramError

    def _write_compare(self, node: nodes.Compare) -> None:
        orders = _ORDERS[node.sign]
        match node.left, node.right:
            case nodes.Property(name), nodes.Property(other):
                self._put(p.OP_NUMBER_PROPERTIES, self._slots[name], self._slots[other], orders)
            case nodes.Property(name), number:
                self._write_number(name, orders, number, p.NULL)
            case number, nodes.Property(name):
                turned = orders & p.ORDER_EQUAL
                turned |= p.ORDER_LESS if orders & p.ORDER_GREATER else p.ORDER_GREATER
                self._write_number(name, turned, number, p.NULL)
            case _:
                raise _NoProgramError

    def _write_number(self, name: str, orders: int, node: Node, absent: int) -> None:
        kind = _KINDS.get(nodes.kind_of(node))
        if kind is None:
            raise _NoProgramError
        value = evaluation.evaluator(node)({})
        assert isinstance(value, (int, float))
        if kind == p.KIND_DOUBLE:
            (value,) = struct.unpack("q", struct.pack("d", value))
        self._put(p.OP_NUMBER, self._slots[name], orders, kind, int(value), absent)
