"""The first characters of a value's text, without creating the rest of it.

A value from outside may be large, or a small graph in which one list occurs in many places. Its `repr` takes
memory for all of it, even if a format then cuts it to 60 characters. Every error that shows such a value uses
this.
"""

from __future__ import annotations

# In an error's text: enough to recognise a value.
MAX_SHOWN = 60


def excerpt(value: object, characters: int = MAX_SHOWN) -> str:
    """Return `repr(value)[:characters]`. The time depends on `characters` and not on the size of the
    value."""
    writer = _Writer(characters)
    writer.write(value)
    return "".join(writer.parts)[:characters]


def text_excerpt(value: object, characters: int = MAX_SHOWN) -> str:
    """Return the first characters of a text as they are, and the excerpt of any other value."""
    return value[:characters] if isinstance(value, str) else excerpt(value, characters)


class _Writer:
    """Writes a value until `left` characters are used; each level takes one, which also limits the depth."""

    def __init__(self, characters: int):
        self.parts: list[str] = []
        self.left = characters

    def write(self, value: object) -> None:
        if type(value) is dict:
            self._put("{")
            for number, (name, member) in enumerate(value.items()):
                if self.left <= 0:
                    return
                self._put(", " if number else "")
                self.write(name)
                self._put(": ")
                if self.left <= 0:
                    return
                self.write(member)
            self._put("}")
        elif type(value) is list:
            self._put("[")
            for number, item in enumerate(value):
                if self.left <= 0:
                    return
                self._put(", " if number else "")
                self.write(item)
            self._put("]")
        elif type(value) is str or type(value) is bytes:
            self._put(_cut_repr(value, max(1, self.left)))
        else:
            self._put(repr(value))

    def _put(self, text: str) -> None:
        self.parts.append(text)
        self.left -= len(text)


def _cut_repr(value: str | bytes, length: int) -> str:
    """Return a text with the first `length` characters of `repr(value)`.

    The choice of quotes depends on those in the whole value.
    """
    if isinstance(value, str):
        text = value[:length]
        return repr(text + "".join(q for q in ("'", '"') if q not in text and value.find(q, length) >= 0))
    raw = value[:length]
    return repr(raw + b"".join(q for q in (b"'", b'"') if q not in raw and value.find(q, length) >= 0))
