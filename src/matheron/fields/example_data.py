"""A table to try things on: heights of gravity stations in southern Africa, in the public domain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..tables import read_table

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = Path(__file__).with_name("stations.csv")


def stations() -> DataFrame:
    """Heights above sea level, in metres, of 1200 gravity stations in and around Lesotho, as a DataFrame.

    They are a sample of the stations between 24 and 32 degrees east and 26.5 and 32.5 degrees south in the gravity data
    of southern Africa that NOAA's National Centers for Environmental Information distribute in the public domain
    (14,559 records received in January 1986; as repackaged in the Fatiando a Terra collection of open data).

    >>> from matheron import fields
    >>> table = fields.stations()
    >>> list(table.columns), len(table)
    (['longitude', 'latitude', 'height'], 1200)
    """
    return read_table(FILE)
