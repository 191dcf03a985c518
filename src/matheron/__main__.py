"""`python -m matheron` is the command line, where the command itself is not on the path."""

from .cli import app

if __name__ == "__main__":
    app()
