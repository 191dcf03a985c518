"""What all tests of the experiments have in common."""

import functools
import tomllib
from pathlib import Path

import pytest

import matheron
from matheron.thompson import strategies

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True, scope="module")
def entry_points(tmp_path_factory):
    """The entry points as an install writes them, by which `matheron` finds the commands: no install is needed."""
    folder = tmp_path_factory.mktemp("site-packages")
    info = folder / "matheron_paper-0.dist-info"
    info.mkdir()
    for group, points in PROJECT["entry-points"].items():
        lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def _named(draw):
    @functools.wraps(draw)
    def with_named_features(*args, **settings):
        assert settings.get("features", "auto") != "auto", "an experiment draws with features that it does not name"
        return draw(*args, **settings)

    return with_named_features


@pytest.fixture(autouse=True, scope="module")
def features_are_named():
    """No experiment leaves the choice of features to the library: defaults may change, published figures may not."""
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((matheron, "draw"), (matheron, "draw_prior"), (strategies, "draw")):
            patch.setattr(place, name, _named(getattr(place, name)))
        yield
