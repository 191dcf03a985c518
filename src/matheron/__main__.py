"""`matheron`, and `python -m matheron` where the command itself is not on the path."""

import signal


def main() -> None:
    """The command line. An interrupt ends it without a traceback, while modules are imported and afterwards."""
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.main import app

    signal.signal(signal.SIGINT, usual)
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
