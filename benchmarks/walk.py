"""How much of the library a reader walks through to follow one call, and how large the spine is.

    python benchmarks/walk.py            # a table, and the lines of code of the spine
    python benchmarks/walk.py --files    # with the files of every call, and the lines of code of each
    python benchmarks/walk.py --numbers  # with the numbers that modules have at their top

Every call is made twice, and the second is counted, so that lazy imports and caches that are filled once do not count.
A function counts once, however often it is called; comprehensions belong to the function around them. The spine is what
the paper needs: the files that a draw with the paper's cosine features, `paths(x)`, `condition_on`, `save` and `load`
walk through. Lines of code leave out blank lines, comments and docstrings.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import matheron
from matheron import kernels

SOURCE = Path(matheron.__file__).parent
SPINE = ("draw, cosine", "paths(x)", "condition_on", "save", "load")


class Walk(NamedTuple):
    """What one call ran through, of this library alone."""

    files: frozenset[str]
    functions: int
    calls: int


def walk(call: Callable[[], object]) -> Walk:
    """Run a call twice, and record the second."""
    call()
    seen: set[tuple[str, str, int]] = set()
    calls = 0

    def note(frame, event: str, argument: object) -> None:
        nonlocal calls
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{SOURCE}/"):
            return
        if code.co_name.startswith("<") and code.co_name != "<lambda>":  # comprehensions and module bodies
            return
        calls += 1
        seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(frozenset(str(Path(file).relative_to(SOURCE)) for file, *_ in seen), len(seen), calls)


def lines_of_code(path: Path) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    text = path.read_text()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def module_numbers(path: Path) -> list[str]:
    """Names of constants at module level that are numbers, or tuples and tables of numbers."""
    names: list[str] = []
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        if any(isinstance(part, ast.Call | ast.Subscript) for part in ast.walk(node.value)):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        constants = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
        if any(isinstance(value, int | float) and not isinstance(value, bool) for value in constants):
            found = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            names += [name for name in found if name.strip("_").isupper()]
    return names


def walks() -> dict[str, Walk]:
    """The calls that a user makes first, on a model of twenty data."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(20, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(6 * X[:, 0])
    kernel = kernels.Matern(2.5, 0.3)
    gp = matheron.ExactGP(kernel, X, y, noise=1e-4)
    x = torch.rand(100, 1, generator=generator, dtype=torch.float64)
    paths = matheron.draw(gp, 8, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paths.safetensors"
        calls: dict[str, Callable[[], object]] = {
            "draw, cosine": lambda: matheron.draw(gp, 8, features="cosine", seed=0),
            "draw": lambda: matheron.draw(gp, 8, seed=0),
            "draw, domain": lambda: matheron.draw(gp, 8, domain=(0, 1), seed=0),
            "paths(x)": lambda: paths(x),
            "condition_on": lambda: paths.condition_on([[0.5]], [1.0], noise=1e-4, seed=0),
            "minimize": lambda: matheron.minimize(paths, [[0.0], [1.0]]),
            "fit": lambda: matheron.fit(kernel, X, y),
            "save": lambda: paths.save(file),
            "load": lambda: matheron.load(file),
        }
        return {name: walk(call) for name, call in calls.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of every call")
    parser.add_argument("--numbers", action="store_true", help="list the numbers at module level")
    arguments = parser.parse_args()
    found = walks()
    print("| call | files | functions | calls |\n|---|---|---|---|")
    for name, each in found.items():
        print(f"| {name} | {len(each.files)} | {each.functions} | {each.calls} |")
    spine = sorted(frozenset().union(*(found[name].files for name in SPINE)))
    total = sum(lines_of_code(SOURCE / file) for file in spine)
    everything = list(SOURCE.rglob("*.py"))
    print(f"\nspine: {total} lines of code in {len(spine)} files")
    print(
        f"library: {sum(map(lines_of_code, everything))} lines of code, "
        f"{sum(len(path.read_text().splitlines()) for path in everything)} lines in all, {len(everything)} files"
    )
    numbers = {path: names for path in sorted(everything) if (names := module_numbers(path))}
    print(f"numbers at module level: {sum(map(len, numbers.values()))} in {len(numbers)} files")
    if arguments.numbers:
        for path, names in numbers.items():
            print(f"  {len(names):3d} {path.relative_to(SOURCE)}: {', '.join(names)}")
    if arguments.files:
        for name, each in found.items():
            print(f"\n{name}")
            for file in sorted(each.files):
                print(f"  {lines_of_code(SOURCE / file):5d} {file}")


if __name__ == "__main__":
    main()
