"""Text to a checked tree (docs/spec/sql92.md sections 2 and 3).

    filter  = or
    or      = and { OR and }
    and     = eq { AND eq }
    eq      = cmp { "=" cmp | "<>" cmp | IS NULL | IS NOT NULL }
    cmp     = unary { (">" | ">=" | "<" | "<=") unary
                    | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) STRING
                    | [NOT] BETWEEN unary AND unary
                    | [NOT] IN "(" STRING { "," STRING } ")" }
    unary   = "+" unary | "-" unary | NOT unary | prim
    prim    = STRING | INT | FLOAT | TRUE | FALSE | NULL | ID | "(" or ")"

The parser keeps operators that wait for their right side on a stack of its own, so that nesting is bounded by
MAX_NESTING and not by the stack of the thread. Text after the end of a filter is ignored, as Apache's filter
does; `Parsed.ignored_from` says where it begins.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from broker_store.sql92 import lexer, nodes
from broker_store.sql92.errors import SYNTAX, ExpressionError
from broker_store.sql92.lexer import Lexer, Token
from broker_store.sql92.nodes import Constant, Node, Property

# Apache's filter has no limits: about 900 parentheses pass there, then its stack is full.
MAX_CHARACTERS = 8 * 1024
MAX_NESTING = 800
MAX_TOKENS = 2_048  # compiled in some 20 ms

_PREFIXES = ("+", "-", "NOT")
_COMPARISONS = (">", ">=", "<", "<=")
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_LEVELS = {"OR": 0, "AND": 1, "=": 2, "<>": 2}


class Parsed(NamedTuple):
    """A filter's tree. `ignored_from` is the place of the first token after its end, None without one."""

    tree: Node
    ignored_from: int | None


class _Waiting(NamedTuple):
    """An operator that waits for its right side: a prefix, `(`, an operator, or BETWEEN with its sides."""

    sign: str
    left: Node | None = None
    low: Node | None = None
    negated: bool = False


def parse(text: str) -> Parsed:
    """Return the tree of a filter. Raises ExpressionError."""
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(
            f"an expression of {len(text)} characters, at most {MAX_CHARACTERS} are allowed"
        )
    return _Parser(text).filter()


class _Parser:
    def __init__(self, text: str):
        self._text = text
        self._lexer = Lexer(text)
        self._token: Token | None = None
        self._second: Token | None = None
        self._stack: list[_Waiting] = []
        self._taken = 0

    # Tokens

    def _peek(self) -> Token:
        if self._token is None:
            self._token = self._lexer.next()
        return self._token

    def _peek_second(self) -> Token:
        self._peek()
        if self._second is None:
            self._second = self._lexer.next()
        return self._second

    def _take(self) -> Token:
        token = self._peek()
        self._taken += 1
        if self._taken > MAX_TOKENS:
            raise ExpressionError(f"an expression of more than {MAX_TOKENS} words and signs")
        self._token, self._second = self._second, None
        return token

    def _expect(self, kind: str) -> Token:
        if self._peek().kind != kind:
            self._refuse()
        return self._take()

    def _refuse(self) -> NoReturn:
        """Raise the error of a token that no rule takes."""
        token = self._peek()
        if token.kind == lexer.END:
            line, column = lexer.place(self._text, len(self._text) - 1) if self._text else (0, 0)
            encountered = lexer.END
        else:
            line, column = lexer.place(self._text, token.at)
            image = token.kind if token.kind.startswith("<") and len(token.kind) > 2 else f'"{token.kind}"'
            encountered = f' {image} "{lexer.escaped(token.text)} "'
        raise ExpressionError(f'Encountered "{encountered}" at line {line}, column {column}.', SYNTAX)

    # Rules

    def filter(self) -> Parsed:
        while True:
            node = self._after_operand(self._operand())
            if node is not None:
                tree = nodes.condition(node)
                end = self._peek()
                return Parsed(tree, None if end.kind == lexer.END else end.at)

    def _operand(self) -> Node:
        """Read prefixes and parentheses, and return the operand after them."""
        while (token := self._peek()).kind in _PREFIXES or token.kind == "(":
            self._take()
            self._stack.append(_Waiting(token.kind))
            if len(self._stack) > MAX_NESTING:
                raise ExpressionError(f"an expression nested more than {MAX_NESTING} deep")
        self._peek()
        match token.kind:
            case lexer.IDENTIFIER:
                node: Node = Property(token.text)
            case lexer.STRING:
                node = Constant("text", token.value)
            case lexer.INTEGER:
                node = nodes.whole(token.text)
            case lexer.FLOAT:
                node = nodes.fraction(token.text)
            case "TRUE" | "FALSE":
                node = Constant("boolean", token.kind == "TRUE")
            case "NULL":
                node = Constant("null", None)
            case _:
                self._refuse()
        self._take()
        return node

    def _after_operand(self, node: Node) -> Node | None:
        """Read what follows an operand up to the next operator, which then waits for its right side: None is
        returned. At the end of the filter, return its tree."""
        is_comparable = (
            True  # not after IS NULL: what could follow a comparison's operand is ignored text there
        )
        while True:
            node = self._with_prefixes(node)
            waiting = self._stack[-1] if self._stack else None
            if waiting is not None and waiting.sign == "BETWEEN":
                self._stack.pop()
                assert waiting.left is not None
                if waiting.low is None:
                    self._expect("AND")
                    self._stack.append(waiting._replace(low=node))
                    return None
                node = nodes.between(waiting.left, waiting.low, node, negated=waiting.negated)
                continue
            if waiting is not None and waiting.sign in _COMPARISONS:
                self._stack.pop()
                node = _binary(waiting, node)
                continue
            token = self._peek()
            if is_comparable and token.kind in _COMPARISONS:
                self._stack.append(_Waiting(self._take().kind, node))
                return None
            if (
                is_comparable
                and token.kind == "NOT"
                and self._peek_second().kind not in (*_SEARCHES, "BETWEEN", "IN")
            ):
                self._refuse()
            if is_comparable and token.kind in ("NOT", "BETWEEN", "IN", *_SEARCHES):
                tested = self._test(node)
                if tested is None:
                    return None
                node = tested
                continue
            node = self._combined(node, _LEVELS.get(token.kind, 2 if token.kind == "IS" else -1))
            if token.kind == "IS":
                node = self._is_null(node)
                is_comparable = False
            elif token.kind in _LEVELS:
                self._stack.append(_Waiting(self._take().kind, node))
                return None
            elif not self._stack:
                return node
            else:  # the innermost operator is a parenthesis
                self._expect(")")
                self._stack.pop()
                is_comparable = True

    def _with_prefixes(self, node: Node) -> Node:
        while self._stack and self._stack[-1].sign in _PREFIXES:
            sign = self._stack.pop().sign
            if sign == "-":
                node = nodes.minus(node)
            elif sign == "NOT":
                node = nodes.negation(node)
        return node

    def _combined(self, node: Node, level: int) -> Node:
        """Return the node joined with what waits to its left and binds at least as tightly as `level`."""
        while self._stack and _LEVELS.get(self._stack[-1].sign, -1) >= max(level, 0):
            node = _binary(self._stack.pop(), node)
        return node

    def _test(self, node: Node) -> Node | None:
        """Read a test of the operand that was read. Return None for BETWEEN, whose sides follow."""
        negated = self._peek().kind == "NOT"
        if negated:
            self._take()
        word = self._take().kind
        if word == "BETWEEN":
            self._stack.append(_Waiting("BETWEEN", node, None, negated))
            return None
        if word == "IN":
            self._expect("(")
            values = [self._expect(lexer.STRING).value]
            while self._peek().kind == ",":
                self._take()
                values.append(self._expect(lexer.STRING).value)
            self._expect(")")
            return nodes.member(node, tuple(values), negated=negated)
        text = self._expect(lexer.STRING).value
        return nodes.Search(_search(word), node, text, negated, nodes.below(node))

    def _is_null(self, node: Node) -> Node:
        self._take()
        if self._peek().kind == "NOT":
            self._take()
            self._expect("NULL")
            return nodes.negation(nodes.is_null(node))
        self._expect("NULL")
        return nodes.is_null(node)


def _search(word: str) -> nodes.SearchWord:
    return "CONTAINS" if word == "CONTAINS" else "STARTSWITH" if word == "STARTSWITH" else "ENDSWITH"


def _binary(waiting: _Waiting, right: Node) -> Node:
    left = waiting.left
    assert left is not None
    match waiting.sign:
        case "AND" | "OR" as word:
            return nodes.logic(word, left, right)
        case "=":
            return nodes.equal(left, right)
        case "<>":
            return nodes.negation(nodes.equal(left, right))
        case ">" | ">=" | "<" | "<=" as sign:
            return nodes.compare(sign, left, right)
    raise AssertionError(waiting.sign)
