"""The playground: its numbers are the library's, and its page works in a browser, on this machine alone."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import matheron
from browser import opened
from matheron import kernels as K
from matheron.cli.playground.model import FEATURES, KERNELS, Choices, Playground

DATA = ((0.2, 0.5), (0.7, -0.4))


def test_the_picture_is_the_exact_posterior_beside_prior_plus_update():
    shown = Playground(Choices(num_features=128), DATA).picture()
    gp = matheron.ExactGP(K.Matern(2.5, 0.15), [[0.2], [0.7]], [0.5, -0.4], noise=1e-4)
    exact = matheron.samplers.moments(gp, shown.x[:, None])
    assert torch.allclose(shown.mean, exact.mean)
    assert torch.allclose(shown.deviation.square(), exact.covariance.diagonal().clamp_min(0), atol=1e-9)
    assert torch.allclose(shown.prior + shown.update, shown.posterior)
    near = shown.posterior[:, (shown.x - 0.2).abs().argmin()]
    assert bool(((near - 0.5).abs() < 0.1).all())


def test_added_observations_condition_the_draw_that_is_shown():
    playground = Playground()
    prior = playground.picture().prior
    playground.observe(DATA[:1])
    one = playground.picture()
    playground.observe(DATA)
    both = playground.picture()
    assert torch.equal(one.prior, prior) and torch.equal(both.prior, prior)
    assert torch.allclose(both.posterior, Playground(observations=DATA).picture().posterior, atol=1e-6)
    playground.observe(DATA[:1])  # taken away again
    assert torch.allclose(playground.picture().posterior, one.posterior, atol=1e-6)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("data", [(), DATA], ids=["prior", "posterior"])
def test_more_features_are_nearer_to_the_posterior(features, data):
    few, many = (Playground(Choices(features=features, num_features=n), data).picture().w2 for n in (16, 1024))
    assert many < 0.5 * few


def test_leverage_features_are_nearer_than_plain_ones():
    plain, leverage = (
        Playground(Choices(features=kind, num_features=32, kernel="Matern 3/2"), DATA).picture().w2
        for kind in ("plain", "leverage")
    )
    assert leverage < plain


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_of_the_menu_can_be_shown(kernel):
    playground = Playground(Choices(kernel=kernel), DATA)
    before = playground.picture().posterior
    playground.choose(replace(playground.choices, lengthscale=0.4))
    after = playground.picture()
    assert bool(torch.isfinite(after.posterior).all()) and not torch.equal(after.posterior, before)


def test_the_server_listens_on_this_machine_alone(monkeypatch):
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    from matheron.cli.playground.command import make_server

    server, url = make_server()
    try:
        assert server.address == "127.0.0.1" and url == f"http://127.0.0.1:{server.port}/"
    finally:
        server.stop()


def test_requests_by_another_name_than_this_machine_s_are_refused():
    """As of a page of another site, whose name was given this machine's address: its Origin and its Host agree."""
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
    from tornado.websocket import websocket_connect

    from matheron.cli.playground.command import make_server

    server, url = make_server()
    socket = url.replace("http", "ws") + "ws"

    async def status(host: str, path: str) -> int:
        headers = {"Host": host, "Origin": f"http://{host}"}
        try:
            if path:
                (await websocket_connect(HTTPRequest(socket, headers=headers), subprotocols=["bokeh", "x"])).close()
                return 101
            return (await AsyncHTTPClient().fetch(HTTPRequest(url, headers=headers))).code
        except HTTPClientError as refused:
            return refused.code

    server.start()
    try:
        for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
            assert server.io_loop.run_sync(lambda host=host: status(host, "")) == 200
            assert server.io_loop.run_sync(lambda host=host: status(host, "ws")) == 101
        for host in (f"evil.example:{server.port}", "evil.example", f"127.0.0.1.evil.example:{server.port}"):
            assert server.io_loop.run_sync(lambda host=host: status(host, "")) == 403
            assert server.io_loop.run_sync(lambda host=host: status(host, "ws")) == 403
    finally:
        server.stop()


def test_values_that_no_slider_has_are_held_to_its_range_or_ignored():
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    from matheron.cli.playground.page import Page

    page = Page()
    before = page.playground.choices
    page.lengthscale.value, page.num_features.value = float("nan"), 60  # 2^60 features would be a long wait
    page.num_paths.value, page.noise.value = -3, float("inf")
    page.kernel.value, page.features.active = "the user's own", 17
    page.sliders[0].trigger("value_throttled", 0.1, 0.2)
    found = page.playground.choices
    assert (found.lengthscale, found.kernel, found.features) == (before.lengthscale, before.kernel, before.features)
    assert (found.num_features, found.num_paths, found.noise) == (2**11, 1, 1.0)
    page.features.active = None
    page.lengthscale.value = 1e9
    page.sliders[0].trigger("value_throttled", 0.2, 0.3)
    assert page.playground.choices.lengthscale == 0.6


@pytest.mark.filterwarnings("ignore:ColumnDataSource")
def test_observations_that_are_no_numbers_are_ignored_and_those_outside_the_plot_are_moved_into_it():
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    from matheron.cli.playground.page import Page

    page = Page()
    nan = float("nan")
    page.data.data = {"x": [0.3, nan, "here", None, 7.0, 0.5], "y": [0.5, 0.1, 0.2, 0.3, -1e300, nan]}
    assert page.playground.observations == ((0.3, 0.5), (1.0, -3.0))
    page.data.data = {"x": [0.1] * 5000, "y": [0.2] * 4000}
    assert 0 < len(page.playground.observations) <= 200
    page.data.data = {"z": [1.0]}
    assert page.playground.observations == ()
    assert "0 observations" in page.numbers.text


def test_a_missing_bokeh_is_named_with_its_extra(monkeypatch):
    from matheron.cli.playground.command import make_server

    monkeypatch.setitem(sys.modules, "bokeh.server.server", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[playground\]'"):
        make_server()


@pytest.fixture
def served():
    pytest.importorskip("bokeh", reason="bokeh is not installed")
    command = [sys.executable, "-u", "-m", "matheron.cli.main", "playground"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield re.findall(r"http://127\.0\.0\.1:\d+/", running.stdout.readline())[0]
        finally:
            running.terminate()


@pytest.mark.slow
def test_in_a_browser_clicks_add_observations_and_sliders_move_the_paths(served):
    with opened(served, height=800) as (page, wrong):
        page.wait_for_selector("canvas")
        numbers = "() => Bokeh.documents[0].get_model_by_name('numbers').text"
        page.wait_for_function(f"({numbers})().includes('0 observations')")
        box = page.locator("canvas").first.bounding_box()
        for count, (across, down) in enumerate([(0.3, 0.4), (0.7, 0.6)], start=1):
            page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
            page.wait_for_function(f"({numbers})().includes('{count} observations')")
            page.wait_for_timeout(600)  # a second click at once would be a double click
        before = page.evaluate(numbers)
        page.evaluate("Bokeh.documents[0].get_model_by_name('features').value = 9")
        page.evaluate("Bokeh.documents[0].get_model_by_name('features').value_throttled = 9")
        page.wait_for_function(f"({numbers})().includes('512 features')")
        assert page.evaluate(numbers) != before
        page.get_by_role("button", name="the paper's").click()
        page.wait_for_timeout(500)
        page.get_by_role("button", name="Remove the observations").click()
        page.wait_for_function(f"({numbers})().includes('0 observations')")
        assert not wrong
