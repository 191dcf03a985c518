"""The command line: the command `matheron` and its subcommands."""

from .main import app as app
