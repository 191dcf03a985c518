"""No experiment leaves the choice of features to the library: its defaults may change, published figures may not."""

import functools

import pytest

import matheron
from matheron.thompson import strategies


def _named(draw):
    @functools.wraps(draw)
    def with_named_features(*args, **settings):
        assert settings.get("features", "auto") != "auto", "an experiment draws with features that it does not name"
        return draw(*args, **settings)

    return with_named_features


@pytest.fixture(autouse=True, scope="module")
def features_are_named():
    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((matheron, "draw"), (matheron, "draw_prior"), (strategies, "draw")):
            patch.setattr(place, name, _named(getattr(place, name)))
        yield
