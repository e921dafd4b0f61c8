"""The rows of tests/mqadmin/access.txt that are a view's, from the views' folders:
`python -m tests.support.access_table` writes them there."""

from __future__ import annotations

import os
from pathlib import Path

TABLE = Path(__file__).parent.parent / "mqadmin" / "access.txt"
BEGIN = "# Views, from the access.txt of each folder by `python -m tests.support.access_table`\n"
END = "# No view's\n"


def table(text: str) -> str:
    """The table `text` with the present rows of the views between BEGIN and END."""
    from mqadmin.views.registry import VIEWS

    head, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    columns = next(line for line in head.splitlines() if line.startswith("method"))
    blocks = [
        f"\n# {view.name}\n" + "".join(f"{in_columns(row, columns)}\n" for row in view.access)
        for view in VIEWS
        if view.access
    ]
    return f"{head}{BEGIN}{''.join(blocks)}\n{END}{after}"


def in_columns(row: str, columns: str) -> str:
    """A row with each word below its heading in `columns`."""
    begins = [
        at for at, character in enumerate(columns) if character != " " and (at == 0 or columns[at - 1] == " ")
    ]
    line = ""
    for at, word in zip(begins, row.split(), strict=True):
        line = f"{line:<{at}}{word}"
    return line


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.mqadmin.settings")
    import django

    django.setup()
    TABLE.write_text(table(TABLE.read_text()))
