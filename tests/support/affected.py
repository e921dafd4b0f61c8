"""Runs the quick tests that a change may break: `python -m tests.support.affected [FILE...]`.

Without files: those that `make watch` has just seen change (WATCHFILES_CHANGES), else those that differ from the
last commit. A test is affected when its file imports a changed module, directly or through others, or has its
name in a string, as dynamic imports and patches do; templates are followed by their names. Files that are nearest
to the change run first, and the first failure ends the run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.syntax import tree_of

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "imports.json"
PLACES = ("broker_store", "mqadmin", "templates", "tests")
QUICK = "not slow and not client and not browser and not proof"
_MODULE_NAME = re.compile(r"[a-z_]\w*(?:\.\w+)+")
_TEMPLATES_IN_ONE = re.compile(r"""\{%\s*(?:extends|include)\s+["']([^"']+)["']""")


def names_in(path: Path) -> list[str]:
    """Return the modules and templates that a file names, by dotted name or by a path's end."""
    text = path.read_text()
    if path.suffix == ".html":
        return _TEMPLATES_IN_ONE.findall(text)
    names: set[str] = set()
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.Import):
            names.update(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(path, node)
            names.update(f"{module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.endswith(".html") or _MODULE_NAME.fullmatch(node.value):
                names.add(node.value)
    return sorted(names)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.relative_to(ROOT).parts[: -node.level]
    return ".".join((*package, *([node.module] if node.module else ())))


def names_of_all(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return what each file names, from CACHE where the file is as it was then."""
    try:
        known = json.loads(CACHE.read_text())
    except (OSError, ValueError):
        known = {}
    found = {}
    for path in paths:
        name, changed_ns = str(path.relative_to(ROOT)), path.stat().st_mtime_ns
        row = known.get(name)
        try:
            found[name] = row if row and row[0] == changed_ns else [changed_ns, names_in(path)]
        except SyntaxError:
            found[name] = [changed_ns, []]  # pytest reports it
    CACHE.parent.mkdir(exist_ok=True)
    CACHE.write_text(json.dumps(found))
    return {name: names for name, (_, names) in found.items()}


def files() -> list[Path]:
    return [
        path for place in PLACES for suffix in ("py", "html") for path in (ROOT / place).rglob(f"*.{suffix}")
    ]


def graph(names: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return for each file the files that name it."""
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in names
        if name.endswith(".py")
    }
    templates = {end: name for name in names if name.endswith(".html") for end in _ends(name)}
    named_by: dict[str, set[str]] = defaultdict(set)
    for name, named in names.items():
        for one in named:
            if one.endswith(".html"):
                target = templates.get(one)
            else:
                target = next((modules[prefix] for prefix in _prefixes(one) if prefix in modules), None)
            if target and target != name:
                named_by[target].add(name)
        for directory in Path(name).parents:
            conftest = str(directory / "conftest.py")
            if conftest in names and conftest != name:
                named_by[conftest].add(name)
    return named_by


def _prefixes(name: str) -> Iterator[str]:
    """`a.b.c`, `a.b`: an imported name may be a module or something in one."""
    while "." in name:
        yield name
        name = name.rpartition(".")[0]


def _ends(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[at:]) for at in range(len(parts)))


def affected(changed: Iterable[str], named_by: dict[str, set[str]]) -> list[str]:
    """Return the test files that the changed files reach, the nearest first; of equally near ones those that
    are named after what they test."""
    distance = dict.fromkeys(changed, 0)
    ahead = list(distance)
    for name in ahead:  # grows while it is read
        own = f"/test_{Path(name).stem}.py"
        for other in sorted(named_by.get(name, ()), key=lambda other: (not other.endswith(own), other)):
            if other not in distance:
                distance[other] = distance[name] + 1
                ahead.append(other)
    return [name for name in ahead if re.fullmatch(r"tests/(?:.*/)?test_\w+\.py", name)]


def changed_files(arguments: list[str]) -> list[str]:
    seen = [path for _, path in json.loads(os.environ.get("WATCHFILES_CHANGES") or "[]")]
    if not (arguments or seen):
        status = subprocess.run(
            ["git", "status", "--porcelain", "-z", "--no-renames"], cwd=ROOT, capture_output=True, text=True
        ).stdout
        seen = [str(ROOT / line[3:]) for line in status.split("\0") if line]
    paths = [Path(path).resolve() for path in arguments or seen]
    return [str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT)]


def main(arguments: list[str]) -> int:
    changed = changed_files(arguments)
    tests = [name for name in affected(changed, graph(names_of_all(files()))) if (ROOT / name).exists()]
    if not tests:
        print(f"No test is affected by {', '.join(changed) or 'anything: no file has changed'}.")
        return 0
    print(f"{len(tests)} test files are affected by {', '.join(changed[:5])}: {', '.join(tests[:8])}")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", QUICK, *tests], cwd=ROOT
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
