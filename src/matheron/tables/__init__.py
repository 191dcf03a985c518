"""CSV and Parquet files, and their columns as numbers."""

from .encoding import EncodedColumns as EncodedColumns
from .encoding import numbers as numbers
from .files import TableWriter as TableWriter
from .files import read_chunks as read_chunks
from .files import read_table as read_table
