"""What is said where an optional library is missing: which extra of this distribution brings it."""

from __future__ import annotations


def missing_extra(what: str, extra: str, error: ImportError) -> ImportError:
    """The error for something that needs an extra that is not installed. There is no release yet, so it names a clone.

    >>> from matheron.core.extras import missing_extra
    >>> missing_extra("tables need pandas", "tables", ImportError("No module named 'pandas'"))
    ImportError("tables need pandas. In a clone of matheron: pip install '.[tables]' (No module named 'pandas')")
    """
    return ImportError(f"{what}. In a clone of matheron: pip install '.[{extra}]' ({error})")
