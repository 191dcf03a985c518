"""The results file: nothing finished is lost, nothing torn is believed, nothing is mixed."""

import errno
import json
import os

import pytest

from matheron_paper.results import Results, ResultsError

HEADER = {"experiment": "toy", "version": 1, "scale": "quick", "seed": 0, "settings": {"draws": 10, "dims": [2, 4]}}


@pytest.fixture
def path(tmp_path):
    with Results(tmp_path / "deep" / "toy.jsonl", HEADER, {"torch": "any"}) as results:
        results.append("a", {"result": 1})
        results.append("b", {"result": 2})
    return results.path


def keys(path):
    with Results(path, HEADER) as results:
        return sorted(results.records)


def test_what_was_appended_is_read_back(path):
    with Results(path, HEADER) as results:
        assert {key: record["result"] for key, record in results.records.items()} == {"a": 1, "b": 2}


def test_a_line_is_on_the_disk_before_append_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    with Results(path, HEADER) as results:
        results.append("c", {"result": 3})
        assert synced == [path.stat().st_size]


def test_a_torn_last_line_is_cut_away_wherever_it_was_torn(path):
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        assert keys(path) == ["a"]
        assert path.read_bytes() == whole[:last]
    path.write_bytes(whole)
    assert keys(path) == ["a", "b"]


def test_a_torn_header_is_written_again(path):
    whole = path.read_bytes()
    first = whole.find(b"\n") + 1
    for torn in (b"", b"\0" * 9, *(whole[:end] for end in (1, 12, 30, first - 1))):
        path.write_bytes(torn)
        assert keys(path) == []
        assert json.loads(path.read_bytes())["settings"] == HEADER["settings"]


def test_more_can_be_appended_after_a_repair(path):
    path.write_bytes(path.read_bytes()[:-5])
    with Results(path, HEADER) as results:
        results.append("c", {"result": 3})
    assert keys(path) == ["a", "c"]


def test_a_last_line_of_zeros_counts_as_torn(path):
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 20 + b"\n")
    assert keys(path) == ["a", "b"]
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_refused_and_named(path):
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-3]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ResultsError, match="line 2 is damaged; delete that line"):
        Results(path, HEADER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"draws": 11, "dims": [2, 4]}}, "settings.draws is 10 there and 11 here"),
        ({"settings": {"draws": 10, "dims": [2]}}, r"settings.dims is \[2, 4\] there and \[2\] here"),
        ({"settings": {"draws": 10, "dims": [2, 4], "new": 1}}, "settings.new is None there and 1 here"),
        ({"scale": "paper"}, "scale is 'quick' there and 'paper' here"),
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"version": 2}, "version is 1 there and 2 here"),
        ({"experiment": "other"}, "experiment is 'toy' there and 'other' here"),
    ],
)
def test_a_file_of_another_run_is_refused_with_the_difference(path, change, message):
    before = path.read_bytes()
    with pytest.raises(ResultsError, match=message):
        Results(path, {**HEADER, **change})
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["Dear all", "Dear all\n", "Dear all\nwe wri", '"Dear all"\n{}\n', "{}\n", "\n\n"])
def test_a_file_that_is_no_results_file_is_left_alone(tmp_path, text):
    path = tmp_path / "letter.txt"
    path.write_text(text)
    with pytest.raises(ResultsError, match="expected a results file of matheron; use another --out"):
        Results(path, HEADER)
    assert path.read_text() == text


def test_two_runs_cannot_write_to_one_file(path):
    with Results(path, HEADER), pytest.raises(ResultsError, match="another run is writing to this file"):
        Results(path, HEADER)
    assert keys(path) == ["a", "b"]


def test_a_failed_trial_is_not_done_until_it_ends_well(path):
    with Results(path, HEADER) as results:
        results.append("c", {"error": "no"})
        assert results.done == {"a", "b"}
        results.append("c", {"result": 3})
    with Results(path, HEADER) as results:
        assert results.done == {"a", "b", "c"}


FEATURES = HEADER | {"features": {"decoupled": "sobol"}}


def test_runs_with_other_features_are_never_mixed(tmp_path):
    with Results(tmp_path / "toy.jsonl", FEATURES) as results:
        pass
    with Results(results.path, FEATURES):
        pass
    with pytest.raises(ResultsError, match=r"features\.decoupled is 'sobol' there and 'lattice' here"):
        Results(results.path, HEADER | {"features": {"decoupled": "lattice"}})


def test_a_file_that_does_not_say_its_features_yet_is_taken(path):
    with Results(path, FEATURES) as results:
        assert sorted(results.records) == ["a", "b"]


class Full:
    """A file on a full disk."""

    def __init__(self, file):
        self.file = file

    def write(self, line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_is_said_in_words_and_loses_no_trial(path):
    with Results(path, HEADER) as results:
        results._file = Full(results._file)  # type: ignore[assignment]
        with pytest.raises(ResultsError, match=r"a trial could not be written .No space left on device.; make room"):
            results.append("c", {"result": 3})
    assert keys(path) == ["a", "b"]


WHOLE = {"case": {"d": 2}, "trial": 0, "device": "cpu", "seconds": 1.0, "result": {"w2": 1.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trial": "first"}, "'first' for 'trial'"),
        ({"case": None}, "None for 'case'"),
        ({"seconds": "long"}, "'long' for 'seconds'"),
        ({"result": 3}, "3 for 'result'"),
        ({"device": True}, "True for 'device'"),
    ],
)
def test_a_line_with_wrong_fields_is_named(tmp_path, change, message):
    with Results(tmp_path / "toy.jsonl", HEADER) as results:
        results.append("good", WHOLE)
        results.append("failed", {**{k: v for k, v in WHOLE.items() if k not in ("result", "seconds")}, "error": "no"})
        results.check_fields()
        results.append("bad", WHOLE | change)
        with pytest.raises(ResultsError, match=f"the line of trial bad has {message}"):
            results.check_fields()
    with Results(results.path, HEADER) as results:
        results.append("bad", {k: v for k, v in WHOLE.items() if k not in change})
        with pytest.raises(ResultsError, match="the line of trial bad has nothing for"):
            results.check_fields()


def test_of_an_older_file_only_what_still_means_the_same_counts(tmp_path):
    path, newer = tmp_path / "toy.jsonl", {**HEADER, "version": 2}
    with Results(path, HEADER) as results:
        for d in (2, 4):
            results.append(f"d{d}", {"case": {"d": d}, "result": 1})
    with pytest.raises(ResultsError, match="version is 1 there and 2 here"):
        Results(path, newer)

    def unchanged(version, case):
        return version == 1 and case["d"] > 2

    for _ in range(2):  # the second time the file has lines of both versions
        with Results(path, newer, unchanged=unchanged) as results:
            assert "d4" in results.done and results.records["d4"]["result"] == 1
            assert results.records.get("d2", {"result": 2})["result"] == 2
            results.append("d2", {"case": {"d": 2}, "result": 2})
    with pytest.raises(ResultsError, match="seed is 0 there and 1 here"):
        Results(path, {**newer, "seed": 1}, unchanged=unchanged)
