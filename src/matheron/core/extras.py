"""The error for a missing optional library: it names the extra that installs it."""

from __future__ import annotations


def missing_extra(what: str, extra: str, error: ImportError) -> ImportError:
    """The error for something that needs an extra that is not installed. There is no release yet, so it names a clone.

    >>> from matheron.core.extras import missing_extra
    >>> missing_extra("tables need pandas", "tables", ImportError("No module named 'pandas'"))
    ImportError("tables need pandas. In a clone of matheron: pip install '.[tables]' (No module named 'pandas')")
    """
    return ImportError(f"{what}. In a clone of matheron: pip install '.[{extra}]' ({error})")
