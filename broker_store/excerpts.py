"""The first characters of a value's text, made without making the rest of it.

A value that came from outside may be large, or be a small graph in which one list stands in many places. Its
`repr` takes memory for all of it, also where a format then cuts it to 60 characters. Every error that shows
such a value uses this.
"""

from __future__ import annotations

# Of an error's sentence: enough to recognise a value.
MAX_SHOWN = 60


def excerpt(value: object, characters: int = MAX_SHOWN) -> str:
    """Return `repr(value)[:characters]`, by a number of steps that grows with `characters` and not with the
    value."""
    writer = _Writer(characters)
    writer.write(value)
    return "".join(writer.parts)[:characters]


def text_excerpt(value: object, characters: int = MAX_SHOWN) -> str:
    """Return the first characters of a text as they are, and the excerpt of any other value."""
    return value[:characters] if isinstance(value, str) else excerpt(value, characters)


class _Writer:
    """Writes a value until `left` characters are used up; each level of it takes one, so the depth is bounded
    too."""

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
    """Return a text of which the first `length` characters are those of `repr(value)`. Which quotes it has
    depends on those in all of the value."""
    if isinstance(value, str):
        text = value[:length]
        return repr(text + "".join(q for q in ("'", '"') if q not in text and value.find(q, length) >= 0))
    raw = value[:length]
    return repr(raw + b"".join(q for q in (b"'", b'"') if q not in raw and value.find(q, length) >= 0))
