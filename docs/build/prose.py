"""Measure the prose of pages and docstrings: `python docs/build/prose.py [page.md module.py ...]`, or of all pages.

Printed for each page: the number of sentences, words per sentence (mean and longest), sentences of more than 30 words,
lines of code wider than 88 columns, and terms of the library that the page uses and docs/glossary.md does not define.
With `--long` the long sentences and the wide lines are printed themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent.parent
LONGEST_SENTENCE = 30  # words
WIDEST_CODE = 88  # columns: a page shows this much without scrolling

# Words that have a meaning of their own here. Where a page uses one, the glossary says what it means.
_TERMS = """
basis, bases, block, centre, conditioning, decoupled, domain, draw, ell, ensemble, evaluator, feature, Fourier
feature, frequency, function-space, harmonics, inducing point, jitter, kernel, Laplace's approximation,
lattice, law, lengthscale, leverage, likelihood, location-scale, LOVE, Matheron's rule, mode, monomial,
nugget, own points, path, posterior, preconditioner, prior, regret, residual, roll-out, simple kriging, site,
solver, spectral measure, spectrum, Thompson sampling, tolerance, transform, trust region, update, variance
starvation, variogram, Wasserstein distance, weight-space, weights
"""
TERMS = tuple(" ".join(_TERMS.split()).split(", "))
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_WRITTEN = re.compile(
    r"^<!-- [\w-]+ -->$.*?^<!-- end -->$", re.MULTILINE | re.DOTALL
)  # by a command
_MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL)
_ABBREVIATED = re.compile(r"\b(e\.g|i\.e|cf|vs|Fig|eq|Eq|et al|Wilson et al|St)\.")


@dataclass(frozen=True)
class Prose:
    """What is measured of one page."""

    sentences: tuple[str, ...]
    wide_code: tuple[str, ...]
    undefined: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Words per sentence."""
        return sum(map(words, self.sentences)) / max(1, len(self.sentences))

    @property
    def long(self) -> tuple[str, ...]:
        """Sentences of more words than LONGEST_SENTENCE."""
        return tuple(one for one in self.sentences if words(one) > LONGEST_SENTENCE)


def words(sentence: str) -> int:
    """The number of words: a formula or a piece of code counts as one."""
    return len(sentence.split())


def sentences(text: str) -> list[str]:
    """The sentences of a page's paragraphs and list items.

    Those of code, tables, headings, captions and the parts that commands write are left out.
    """
    text = _WRITTEN.sub("\n\n", _FENCE.sub("\n\n", text))
    text = re.sub(r"<!--.*?-->|<[^>]+>", "", text, flags=re.DOTALL)
    text = _MATH.sub("M", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)  # pictures
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links: their words
    text = re.sub(r"``[^`]+``|`[^`\n]+`", "C", text)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        kept = [
            line
            for line in paragraph.splitlines()
            if not re.match(r"\s*(\||#|>|:::|!!!|\?\?\?|    )", line)
        ]
        joined = _ABBREVIATED.sub(
            lambda match: match[1], " ".join(" ".join(kept).split())
        )
        joined = re.sub(r"^(?:[-*]|\d+\.) ", "", joined).replace("**", "")
        found += [
            one.strip()
            for one in re.split(r"(?<=[.!?:;])[)\"']? +(?=[A-Z(\"'0-9*])", joined)
            if one.strip()
        ]
    return found


def defined() -> set[str]:
    """The terms that the glossary defines, in lower case: each is in bold at the start of its entry."""
    entries = re.findall(
        r"^\*\*([^*]+)\*\*", (DOCS / "glossary.md").read_text(), re.MULTILINE
    )
    return {term.strip().lower() for entry in entries for term in entry.split(",")}


def used(text: str) -> list[str]:
    """The terms that a page's prose uses, in the singular or the plural."""
    prose = " ".join(sentences(text)).lower()
    return [
        term
        for term in TERMS
        if re.search(rf"\b{re.escape(term.lower())}(e?s)?\b", prose)
    ]


def docstrings(module: str) -> str:
    """The docstrings of a module as a page: without examples and formulas, with a paragraph for each argument."""
    nodes = ast.walk(ast.parse(module))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, kinds))
    prose = (re.split(r"^>>> ", text, flags=re.MULTILINE)[0] for text in found if text)
    text = "\n\n".join(prose)
    text = re.sub(r"^(Args|Returns|Attributes):$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^    (?=\w[\w, ]*: )", "\n", text, flags=re.MULTILINE)
    return re.sub(r"^ {8}(?=\S)", "", text, flags=re.MULTILINE)


def measured(page: Path) -> Prose:
    """The measures of a page, or of the docstrings of a module."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".py":
        text = docstrings(text)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = [
        line for kind, block in blocks if kind != "text" for line in block.splitlines()
    ]
    known = defined()
    undefined = [term for term in used(text) if term.lower() not in known]
    return Prose(
        tuple(sentences(text)),
        tuple(line for line in code if len(line) > WIDEST_CODE),
        tuple(undefined),
    )


def main(arguments: list[str]) -> None:
    pages = [
        Path(name).resolve() for name in arguments if not name.startswith("-")
    ] or sorted(DOCS.rglob("*.md"))
    print(
        f"{'page':40} {'sentences':>9} {'mean':>5} {'longest':>7} {'long':>5} {'wide':>5}  undefined"
    )
    for page in pages:
        prose = measured(page)
        name = str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name
        longest = max(map(words, prose.sentences), default=0)
        print(
            f"{name:40} {len(prose.sentences):9} {prose.mean:5.1f} {longest:7} {len(prose.long):5}"
            f" {len(prose.wide_code):5}  {', '.join(prose.undefined)}"
        )
        if "--long" in arguments:
            for line in (*prose.long, *prose.wide_code):
                print(f"    {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
