"""docs/models.md says what the adapters' registries know, no more and no less."""

import re
from pathlib import Path

import pytest

from matheron.adapters import LIBRARIES, supported

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def table(library: str) -> str:
    """The table of a library, as it should stand on the page."""
    rows = [f"| {noun} | {', '.join(f'`{name}`' for name in names)} |" for noun, names in supported(library).items()]
    return "\n".join([f"| {library} | understood |", "|---|---|", *rows])


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_has_the_table_of_every_library(library: str) -> None:
    pytest.importorskip(library)
    expected = table(library)
    match = re.search(rf"^\| {library} \| understood \|\n(\|.*\n)+", PAGE, re.MULTILINE)
    shown = match.group(0).strip() if match else "nothing"
    assert shown == expected, f"docs/models.md should have\n\n{expected}\n"


def test_the_page_has_no_table_of_a_library_without_adapter() -> None:
    assert set(re.findall(r"^\| (\w+) \| understood \|", PAGE, re.MULTILINE)) == set(LIBRARIES)
