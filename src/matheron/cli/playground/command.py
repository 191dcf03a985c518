"""The command `matheron playground`: it serves the page, on this machine only."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bokeh.server.server import Server


def playground(
    port: Annotated[
        int, typer.Option(metavar="NUMBER", min=0, max=65535, help="Port of the page; 0 takes a free one.")
    ] = 0,
) -> None:
    """Serve a page on this machine where clicks add observations and sliders change the model of drawn functions."""
    server, url = make_server(port)
    typer.echo(f"the playground is at {url}\nstop it with Ctrl-C")
    # Bokeh's run_until_shutdown is not used, because its handler of SIGTERM waits until a running draw has ended.
    server.start()
    try:
        server.io_loop.start()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def make_server(port: int = 0) -> tuple[Server, str]:
    """Make a server on the loopback interface, which is not started yet, and return it with the page's address."""
    try:
        from bokeh.server.server import Server
        from tornado.web import ErrorHandler
    except ModuleNotFoundError as error:
        from ...core.checks import missing_extra

        raise missing_extra("the playground needs Bokeh", "playground", error) from None
    from .page import add_page

    port = port or _free_port()
    # The websocket accepts connections from this page only, not from other sites that are open in the browser.
    allowed = [f"127.0.0.1:{port}", f"localhost:{port}"]
    server = Server({"/": add_page}, port=port, address="127.0.0.1", allow_websocket_origin=allowed)
    # Another site may let its name resolve to this machine's address (DNS rebinding). Requests of its pages then have
    # that name as Host and Origin, and Tornado would accept them as this page's own before it reads the list above.
    server._tornado.add_handlers(r"(?!(127\.0\.0\.1|localhost)$).*", [(r".*", ErrorHandler, {"status_code": 403})])
    return server, f"http://127.0.0.1:{port}/"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
