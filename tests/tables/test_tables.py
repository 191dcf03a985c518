"""Tables in files: what CSV files look like in the wild, and what is said of those that cannot be read."""

import gzip
import sys

import numpy as np
import pandas as pd
import pytest

from matheron.tables import EncodedColumns, TableWriter, numbers, read_chunks, read_table

PLAIN = "a,b\n1,2.5\n3,4.5\n"
SAME = {
    "plain": PLAIN.encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + PLAIN.encode(),
    "semicolons": PLAIN.replace(",", ";").encode(),
    "semicolons and decimal commas": b"a;b\n1;2,5\n3;4,5\n",
    "tabs": PLAIN.replace(",", "\t").encode(),
    "bars": PLAIN.replace(",", "|").encode(),
    "Windows' line ends": PLAIN.replace("\n", "\r\n").encode(),
    "UTF-16": PLAIN.encode("utf-16"),
    "spaces": b" a , b\n1 , 2.5\n3, 4.5\n",
    "blank lines": b"a,b\n\n1,2.5\n\n3,4.5\n\n",
    "quotes": b'"a","b"\n"1","2.5"\n"3","4.5"\n',
    "no last line end": PLAIN.strip().encode(),
    "Excel's word on the separator": b"sep=;\na;b\n1;2,5\n3;4,5\n",
}


@pytest.mark.parametrize("kind", SAME)
def test_files_of_every_kind_hold_the_same_table(kind, tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(SAME[kind])
    frame = read_table(file)
    assert EncodedColumns(["a", "b"]).matrix(frame, "t").tolist() == [[1.0, 2.5], [3.0, 4.5]]
    (chunk, *rest) = read_chunks(file, 1)
    assert EncodedColumns(["b", "a"]).matrix(chunk, "t").tolist() == [[2.5, 1.0]] and len(rest) == 1


def test_letters_of_other_encodings_are_read(tmp_path):
    for encoding in ("utf-8", "cp1252"):
        (tmp_path / "t.csv").write_bytes("höhe,zahl\n1,2\n".encode(encoding))
        assert list(read_table(tmp_path / "t.csv").columns) == ["höhe", "zahl"]


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    assert len(read_table(tmp_path / "t.csv.gz")) == 2


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b"\n \n", "is empty"),
    "no rows": (b"a,b\n", "has column names but no rows"),
    "no header": (b"1,2\n3,4\n", r"the first row is numbers \(1, 2, ...\), expected column names"),
    "ragged": (b"a,b\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
    "every row longer than the header": (b"a,b\n1,2,3\n4,5,6\n", "rows have more cells than there are column names"),
    "a web page": (b"<!DOCTYPE html><html>Not found</html>", "looks like a web page"),
    "JSON": (b'{"a": [1, 2]}', "looks like JSON"),
    "only comments": (b"# a\n# b\n", "has comments but no table"),
    "binary": (b"PK\x03\x04\x00\x00", "^[^ ]+ is not text: expected a CSV file"),
    "letters of no encoding that is known": ("a,高さ\n1,2\n".encode("shift-jis"), "save it as UTF-8"),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_no_tables_are_refused_in_words(kind, tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(BAD[kind][0])
    with pytest.raises(ValueError, match=BAD[kind][1]):
        read_table(file)


ODD = {
    "comments above": "# a logger's\n\n# words\nx,y\n1,2\n3,4.5\n",
    "names in the last comment": "# x y\n1 2\n3 4.5\n",
    "spaces": " x   y\n  1   2\n 3  4.5\n",
    "spaces and decimal commas": "x y\n1,0 2,0\n3,0 4,5\n",
    "spaces around names": "x ,y \n1 ,2 \n3 ,4.5\n",
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_files_are_read_whole_and_in_chunks(kind, tmp_path):
    (tmp_path / "t.csv").write_text(ODD[kind])
    whole, chunks = read_table(tmp_path / "t.csv"), pd.concat(read_chunks(tmp_path / "t.csv", 1))
    for frame in (whole, chunks):
        np.testing.assert_array_equal(frame[["x", "y"]].to_numpy(float), [[1, 2], [3, 4.5]])


def test_rows_longer_than_the_header_are_refused_in_chunks_too(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2,3\n4,5,6\n")
    with pytest.raises(ValueError, match="rows have more cells than there are column names"):
        list(read_chunks(tmp_path / "t.csv", 1))


def test_a_decimal_comma_far_down_a_file_is_seen_and_one_among_points_is_not_taken_for_it(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n" + "1;2\n" * 40 + "3;4,5\n")
    assert numbers(read_table(tmp_path / "t.csv"), "b", "t")[-1] == 4.5
    (tmp_path / "t.csv").write_text("a;b;c\n1.5;1,234;2.5\n")
    with pytest.raises(ValueError, match=r"'b' holds '1,234' in row 1 \(1 of 1 cells\), with a separator of"):
        numbers(read_table(tmp_path / "t.csv"), "b", "t")


def test_the_cell_with_a_separator_of_thousands_is_named_and_not_one_before_it(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n" + "1;2,5\n" * 4 + "1;1.234,5\n")
    with pytest.raises(ValueError, match=r"'1.234,5' in row 5 \(1 of 5 cells\).* such as 1234,5"):
        numbers(read_table(tmp_path / "t.csv"), "b", "t")
    (tmp_path / "t.csv").write_text("a;b\n" + "1;2,5\n" * 4 + "1;none\n")
    with pytest.raises(ValueError, match=r"holds text \('none' in row 5; 1 of 5 cells\)"):
        numbers(next(read_chunks(tmp_path / "t.csv", 10)), "b", "t")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.zip", "t.csv.xz"])
def test_a_table_is_the_same_with_a_progress_bar_as_without(tmp_path, name, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    frame = pd.DataFrame({"a": np.arange(2000.0), "b": ["x", "1"] * 1000})
    frame.to_csv(tmp_path / name, index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / name, progress=True), read_table(tmp_path / name))
    printed = capsys.readouterr()
    assert f"reading {name}" in printed.err and not printed.out


def test_the_index_of_a_parquet_file_is_a_column(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    frame.set_index("a").to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), frame)
    chunks = pd.concat(read_chunks(tmp_path / "t.parquet", 2)).reset_index(drop=True)
    pd.testing.assert_frame_equal(chunks, frame)


DATES = ["2026-01-31", "31.01.2026", "1/31/26", "2026/1/31", "12:30", "2026-01-31T12:30Z", "2026-01", "31 Jan 2026"]


@pytest.mark.parametrize("date", [*DATES, "Jan 31, 2026", "31-jan-26"])
def test_dates_are_told_from_other_text(date):
    with pytest.raises(ValueError, match="holds dates"):
        numbers(pd.DataFrame({"day": [date]}), "day", "t")


def test_a_file_that_is_not_there_a_folder_and_a_broken_parquet_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.csv"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(IsADirectoryError, match="is a folder, not a table"):
        read_table(tmp_path)
    (tmp_path / "t.parquet").write_bytes(PLAIN.encode())
    for read in (read_table, lambda file: list(read_chunks(file, 5))):
        with pytest.raises(ValueError, match="is not a Parquet file that can be read"):
            read(tmp_path / "t.parquet")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_what_is_written_in_pieces_is_read_back_whole(name, tmp_path):
    frame = pd.DataFrame({"a": np.arange(7), "b": np.random.default_rng(0).normal(size=7)})
    with TableWriter(tmp_path / name) as writer:
        for i in range(0, 7, 3):
            writer.write(frame.iloc[i : i + 3])
    pd.testing.assert_frame_equal(read_table(tmp_path / name), frame)
    pd.testing.assert_frame_equal(pd.concat(read_chunks(tmp_path / name, 2)).reset_index(drop=True), frame)
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_table_whose_writing_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("old")
    with pytest.raises(RuntimeError), TableWriter(file) as writer:
        writer.write(pd.DataFrame({"a": [1]}))
        raise RuntimeError
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_places_that_cannot_be_written_to_are_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        TableWriter(tmp_path / "none" / "t.csv")
    if sys.platform == "linux":
        with pytest.raises(PermissionError, match="nothing can be written into /proc"):  # not even by root
            TableWriter("/proc/t.csv")
    with pytest.raises(ValueError, match=r"expected a name that ends in \.csv"):
        TableWriter(tmp_path / "t.xlsx")


def test_cells_are_numbers_or_the_cell_is_named():
    frame = pd.DataFrame(
        {
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "flag": [True, False, True],
            "text": ["1.5", " ", "x7"],
            "digits": ["1.5", " ", "7"],
            "day": pd.to_datetime(["2026-01-01"] * 3),
        }
    )
    np.testing.assert_array_equal(numbers(frame, "whole", "t"), [1, np.nan, 3])
    np.testing.assert_array_equal(numbers(frame, "flag", "t"), [1, 0, 1])
    np.testing.assert_array_equal(numbers(frame, "digits", "t"), [1.5, np.nan, 7])
    with pytest.raises(
        ValueError, match=r"t: column 'text' holds text \('x7' in row 3; 1 of 3 cells\).* --encode text"
    ):
        numbers(frame, "text", "t")
    with pytest.raises(ValueError, match=r"column 'day' holds dates.*--exclude"):
        numbers(frame, "day", "t")


def test_categories_become_columns_and_strangers_are_refused():
    columns = EncodedColumns(["kind", "a"], {"kind": ["x", "y"]})
    again = EncodedColumns.from_json(columns.to_json())
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "kind": ["y", None, "x"]})
    assert again.names == ["kind=x", "kind=y", "a"]
    np.testing.assert_array_equal(again.matrix(frame, "t"), [[0, 1, 1], [np.nan, np.nan, 2], [1, 0, 3]])
    with pytest.raises(ValueError, match="column 'kind' holds 'z', which is none of x, y"):
        again.matrix(pd.DataFrame({"a": [1.0], "kind": ["z"]}), "t")
    known = pd.DataFrame({"kind": ["y", "x"], "a": [1.0, 3.0]})
    pd.testing.assert_frame_equal(again.table(again.matrix(known, "t")), known)
    with pytest.raises(ValueError, match="t has no column 'kind'; it has a"):
        again.matrix(pd.DataFrame({"a": [1.0]}), "t")


def test_without_pandas_the_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "t.csv").write_text(PLAIN)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[tables\]'"):
        read_table(tmp_path / "t.csv")
