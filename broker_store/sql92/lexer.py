"""Tokens of an expression (docs/spec/sql92.md section 1).

The lexer reads one token at a time, because an error counts only if the parser gets there: text after the
end of an expression is not read, apart from one token. The longest match counts.

Errors name line and column as Apache's do, which count UTF-16 units and treat a tab as a step to the next
multiple of 8.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from broker_store.sql92.errors import LEXICAL, ExpressionError

END = "<EOF>"
IDENTIFIER = "<ID>"
INTEGER = "<DECIMAL_LITERAL>"
FLOAT = "<FLOATING_POINT_LITERAL>"
STRING = "<STRING_LITERAL>"
KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
_TAB = 8
_KINDS = {"id": IDENTIFIER, "float": FLOAT, "integer": INTEGER, "string": STRING}

# A line comment needs its line end; without one `--` is two signs.
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*.*?\*/)*", re.DOTALL)
# After the last line end. A search for another one at each sign would make the time quadratic.
_SKIPPED_IN_LAST_LINE = re.compile(r"(?:[ \t\f]|/\*.*?\*/)*", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<id>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:[^']|'')*')"
    r"|(?P<operator><>|<=|>=|[=<>(),+-])"
)
# The longest beginning of a token that is not complete: what stands after it, or the end, is the error.
_BEGINNING = re.compile(r"'(?:[^']|'')*|/\*.*|/|\.|", re.DOTALL)
_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "'": "\\'",
    "\\": "\\\\",
}


class Token(NamedTuple):
    """A token at `at` of the text. `kind` is END, a class of tokens, a keyword in capitals or an operator."""

    kind: str
    text: str
    at: int

    @property
    def value(self) -> str:
        """Return the text of a string literal."""
        return self.text[1:-1].replace("''", "'")


class Lexer:
    """The tokens of a text, one at a time."""

    def __init__(self, text: str):
        self._text = text
        self._at = 0
        self._last_line_at = max(text.rfind("\n"), text.rfind("\r")) + 1

    def next(self) -> Token:
        """Return the next token. Raises ExpressionError for a character that begins none."""
        text = self._text
        pattern = _SKIPPED if self._at < self._last_line_at else _SKIPPED_IN_LAST_LINE
        skipped = pattern.match(text, self._at)
        at = skipped.end() if skipped else self._at
        if at == len(text):
            self._at = at
            return Token(END, "", at)
        found = _TOKEN.match(text, at)
        if found is None or not found.lastgroup:
            raise self._error(at)
        self._at = found.end()
        word = found[0]
        if found.lastgroup == "operator":
            return Token(word, word, at)
        if found.lastgroup == "id" and (keyword := word.upper()) in KEYWORDS:
            return Token(keyword, word, at)
        return Token(_KINDS[found.lastgroup], word, at)

    def _error(self, at: int) -> ExpressionError:
        """Return the error of a text without a token at `at`."""
        begun = _BEGINNING.match(self._text, at)
        died = begun.end() if begun else at
        read = self._text[at:died]
        line, column = place(self._text, died)
        if died < len(self._text):
            character = utf16(self._text[died])[0]
            if died + 1 < len(self._text):
                encountered = f'"{escaped(character)}" ({ord(character)}), '
                return ExpressionError(
                    f"Lexical error at line {line}, column {column}.  "
                    f'Encountered: {encountered}after : "{escaped(read)}"',
                    LEXICAL,
                )
            # Apache's lexer wants to read the character after the wrong one, and names the end in its place.
            line, column = place(self._text, died + 1)
            read = self._text[at:] if read else ""
        if len(read) < 2 and died == len(self._text):
            read = ""
        return ExpressionError(
            f'Lexical error at line {line}, column {column}.  Encountered: <EOF> after : "{escaped(read)}"',
            LEXICAL,
        )


def place(text: str, at: int) -> tuple[int, int]:
    """Return line and column, both from 1, of the character at `at`, as Apache's parser counts them."""
    before = text[:at].replace("\r\n", "\n").replace("\r", "\n")
    line = before.count("\n") + 1
    column = 0
    for character in utf16(before[before.rfind("\n") + 1 :]) + (text[at : at + 1] or " "):
        column = column // _TAB * _TAB + _TAB if character == "\t" else column + 1
    return line, column


def utf16(text: str) -> str:
    """Return a text with characters beyond the basic plane as pairs of surrogates: its length is Java's."""
    if text.isascii() or max(text) < "\U00010000":
        return text
    units: list[str] = []
    for character in text:
        code = ord(character) - 0x10000
        units += [character] if code < 0 else [chr(0xD800 + (code >> 10)), chr(0xDC00 + (code & 0x3FF))]
    return "".join(units)


def escaped(text: str) -> str:
    """Return a text with the escapes of Apache's error messages."""
    return "".join(
        _ESCAPES.get(character)
        or (
            character
            if " " <= character <= "~"
            else "".join(f"\\u{ord(unit):04x}" for unit in utf16(character))
        )
        for character in text
    )
