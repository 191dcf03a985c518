"""The playground's page in Bokeh: a plot to click on, sliders, and a line of numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from bokeh.layouts import column, row
from bokeh.models import (
    Button,
    CheckboxButtonGroup,
    ColumnDataSource,
    Div,
    PointDrawTool,
    RadioButtonGroup,
    Range1d,
    Select,
)
from bokeh.models import Slider as BokehSlider
from bokeh.plotting import figure

from ...plots import EXACT, POSTERIOR, PRIOR, UPDATE
from .model import FEATURES, KERNELS, Choices, Playground

if TYPE_CHECKING:
    from bokeh.document import Document
    from bokeh.models import LayoutDOM

SHOWN = ("prior", "update", "posterior", "exact posterior")


def within(value: object, low: float, high: float, otherwise: float) -> float:
    """Clip a number to a range; a value that is not a number becomes `otherwise`."""
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        return otherwise
    return min(max(float(value), low), high)


class Page:
    """The page of one visitor: its elements, and their reactions to changes."""

    # The ranges of sliders and of the plot's axes. Values are clipped to these, because a client may send anything.
    lengthscales, log_noises, log_features, path_counts = (0.03, 0.6), (-6.0, 0.0), (3, 11), (1, 64)
    x_axis, y_axis = (0.0, 1.0), (-3.0, 3.0)
    most_observations = 200  # each needs a linear solve

    def __init__(self) -> None:
        self.playground = Playground()
        self.data = ColumnDataSource({"x": [], "y": []}, name="data")
        self.lines = {name: ColumnDataSource({"xs": [], "ys": []}) for name in SHOWN[:3]}
        self.exact = ColumnDataSource({"x": [], "mean": [], "low": [], "high": []})
        self.numbers = Div(name="numbers", sizing_mode="stretch_width")
        self.plot = self._plot()
        self._controls()
        self.data.on_change("data", lambda attr, old, new: self._observed())
        self._show()

    @property
    def layout(self) -> LayoutDOM:
        title = Div(
            text="<h2>A draw from a Gaussian process posterior</h2>"
            "Click in the plot to add an observation, drag one to move it, press backspace to remove a selected one. "
            "Added observations condition the same draw."
        )
        controls = column(self.kernel, *self.sliders, self.features, self.again, self.clear)
        return column(title, row(controls, column(self.shown, self.plot, self.numbers)), sizing_mode="stretch_width")

    def _plot(self) -> figure:
        x, y = (Range1d(start=low, end=high) for low, high in (self.x_axis, self.y_axis))
        plot = figure(width=820, height=440, x_range=x, y_range=y, toolbar_location=None, tools="", name="plot")
        plot.xaxis.axis_label, plot.yaxis.axis_label = "x", "f(x)"
        band = plot.varea("x", "low", "high", source=self.exact, color="#9aa0a6", fill_alpha=0.3)
        mean = plot.line("x", "mean", source=self.exact, color=EXACT, line_dash="dashed", line_width=1.5)
        styles = {"prior": (PRIOR, 0.5), "update": (UPDATE, 0.5), "posterior": (POSTERIOR, 0.8)}
        drawn = {
            name: [plot.multi_line("xs", "ys", source=self.lines[name], color=colour, line_alpha=alpha, line_width=1.5)]
            for name, (colour, alpha) in styles.items()
        }
        self.renderers = drawn | {"exact posterior": [band, mean]}
        points: Any = plot.scatter("x", "y", source=self.data, size=11, color="white", line_color=EXACT, line_width=1.5)
        tool = PointDrawTool(renderers=[points], add=True, drag=True)
        plot.add_tools(tool)
        plot.toolbar.active_tap = tool
        return plot

    def _controls(self) -> None:
        at = self.playground.choices
        self.kernel = Select(title="kernel", value=at.kernel, options=list(KERNELS))
        # A slider on a logarithmic scale would show exponents; these have a list of values instead.
        self.lengthscale = _slider("lengthscale", self.lengthscales, 0.01, at.lengthscale, "l")
        self.noise = _slider("log10 noise variance", self.log_noises, 0.5, math.log10(at.noise), "noise")
        self.num_features = _slider("log2 features", self.log_features, 1, math.log2(at.num_features), "features")
        self.num_paths = _slider("paths", self.path_counts, 1, at.num_paths, "paths")
        self.features = RadioButtonGroup(labels=list(FEATURES), active=list(FEATURES).index(at.features), name="kind")
        self.again = Button(label="Draw again")
        self.clear = Button(label="Remove the observations")
        self.shown = CheckboxButtonGroup(labels=list(SHOWN), active=[0, 1, 2, 3])
        self.sliders = [self.lengthscale, self.noise, self.num_features, self.num_paths]
        for slider in self.sliders:
            slider.on_change("value_throttled", lambda attr, old, new: self._chosen())
        self.kernel.on_change("value", lambda attr, old, new: self._chosen())
        self.features.on_change("active", lambda attr, old, new: self._chosen())
        self.again.on_click(lambda: self._chosen(next_seed=True))
        self.clear.on_click(lambda: setattr(self.data, "data", {"x": [], "y": []}))
        self.shown.on_change("active", lambda attr, old, new: self._switched())

    def _chosen(self, next_seed: bool = False) -> None:
        before = self.playground.choices
        kernel, kind = self.kernel.value, self.features.active
        choices = Choices(
            kernel=kernel if kernel in KERNELS else before.kernel,
            lengthscale=within(self.lengthscale.value, *self.lengthscales, before.lengthscale),
            noise=10.0 ** within(self.noise.value, *self.log_noises, math.log10(before.noise)),
            num_features=2 ** int(within(self.num_features.value, *self.log_features, math.log2(before.num_features))),
            num_paths=int(within(self.num_paths.value, *self.path_counts, before.num_paths)),
            features=before.features if kind is None else dict(enumerate(FEATURES)).get(kind, before.features),
            seed=before.seed,
        )
        # The noise of each observation is seeded by a number after the draw's seed, so the next seed leaves room for
        # them.
        self.playground.choose(replace(choices, seed=before.seed + 1000) if next_seed else choices)
        self._show()

    def _observed(self) -> None:
        data: Any = self.data.data
        rows = zip(data.get("x", ()), data.get("y", ()), strict=False)
        points = ((within(x, *self.x_axis, math.nan), within(y, *self.y_axis, math.nan)) for x, y in rows)
        whole = [point for point in points if not math.isnan(sum(point))]
        self.playground.observe(tuple(whole[: self.most_observations]))
        self._show()

    def _switched(self) -> None:
        for number, name in enumerate(SHOWN):
            for renderer in self.renderers[name]:
                renderer.visible = number in (self.shown.active or ())

    def _show(self) -> None:
        picture = self.playground.picture()
        x = picture.x.tolist()
        for name in SHOWN[:3]:
            ys = getattr(picture, name).tolist()
            self.lines[name].data = {"xs": [x] * len(ys), "ys": ys}
        low, high = picture.mean - 2 * picture.deviation, picture.mean + 2 * picture.deviation
        columns = {"x": picture.x, "mean": picture.mean, "low": low, "high": high}
        self.exact.data = {name: values.tolist() for name, values in columns.items()}
        share = picture.w2 / picture.spread if picture.spread else 0.0
        self.numbers.text = (
            f"<b>W2 error of the basis: {picture.w2:.3g}</b>, {share:.1%} of the posterior's spread; "
            f"{len(self.playground.observations)} observations, {self.playground.choices.num_features} features"
        )


def _slider(title: str, ends: tuple[float, float], step: float, value: float, name: str) -> BokehSlider:
    return BokehSlider(title=title, start=ends[0], end=ends[1], step=step, value=value, name=name)


def add_page(document: Document) -> None:
    """Bokeh's server calls this for every visitor."""
    document.title = "matheron playground"
    document.add_root(Page().layout)
