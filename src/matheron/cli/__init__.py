"""The command line."""

from .main import app as app
