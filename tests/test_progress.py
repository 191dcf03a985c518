"""progress=True: a bar in a terminal, and in a notebook that has no widgets."""

import builtins
import itertools
import re
import sys
import types

import pytest
import rich
import torch

import matheron
from matheron import kernels as K
from matheron.progress import progress_bar

BOX = [[0.0], [1.0]]


class ZMQInteractiveShell:
    """A notebook's shell, by the name that tells it."""


class Handle:
    def __init__(self, pictures: list[dict[str, str]]) -> None:
        self.pictures = pictures

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        self.pictures.append(bundle)


@pytest.fixture
def pictures(monkeypatch) -> list[dict[str, str]]:
    """What a notebook without ipywidgets is asked to display."""
    shown: list[dict[str, str]] = []

    def display(bundle, *, raw, display_id):
        shown.append(bundle)
        return Handle(shown)

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setattr(rich, "_console", None)
    return shown


def test_a_bar_in_a_notebook_without_widgets_is_text_that_changes(pictures, monkeypatch):
    monkeypatch.setattr("matheron.progress._REFRESH", 0.0)
    with progress_bar() as bar:
        task = bar.add_task("<steps>", total=4)
        for _ in range(4):
            bar.advance(task)
    texts = [p["text/plain"] for p in pictures]
    for share in ("0%", "50%", "100%"):
        assert any(share in text for text in texts)
    assert "&lt;steps&gt;" in pictures[-1]["text/html"] and "━" in texts[-1]


@pytest.mark.filterwarnings("error")  # rich's own bar would say: install ipywidgets
def test_minimize_shows_its_progress_in_a_notebook_and_clears_it(pictures):
    paths = matheron.draw_prior(K.RBF(0.3), 2, input_dim=1, num_features=16, seed=0)
    matheron.minimize(paths, BOX, mesh_size=64, num_starts=2, progress=True, seed=0)
    assert any("screening the mesh" in p["text/plain"] for p in pictures)
    assert any("polishing" in p["text/plain"] for p in pictures)
    assert pictures[-1] == {"text/plain": "", "text/html": ""}


def test_nothing_is_shown_unless_asked(pictures):
    with progress_bar(show=False) as bar:
        bar.advance(bar.add_task("steps", total=1))
    assert not pictures


def test_a_fit_says_how_many_per_cent_are_done_and_the_time_left(pictures, monkeypatch):
    monkeypatch.setattr("matheron.progress._REFRESH", 0.0)
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(80, 2, dtype=torch.float64, generator=generator)
    matheron.fit(1.0 * K.RBF([1.0, 1.0]), X, (3 * X).sin().sum(1), seed=0, num_data=50, progress=True)
    texts = [p["text/plain"] for p in pictures]
    shares = [int(found[1]) for text in texts if (found := re.search(r"(\d+)%", text))]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] > 50
    assert max(b - a for a, b in itertools.pairwise(shares)) < 50
    assert any(re.search(r"\d+:\d\d left", text) for text in texts)
    assert any("50 of 80 rows: start 1 of 4" in text for text in texts)
