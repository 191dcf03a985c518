"""Make the figures and tables of these pages anew from the results in files/.

    matheron reproduce NAME --scale SCALE            # writes results/NAME-SCALE.jsonl, among others
    cp results/NAME-SCALE.jsonl docs/results/files/
    python docs/results/refresh.py

Benchmarks that write such files (BENCHMARKS) are run by their own scripts. Nothing is computed again. A page shows
results between the marks `<!-- NAME-SCALE -->` and `<!-- end -->`.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from matheron_paper import Experiment, experiment
from matheron_paper.report import Report
from matheron_paper.results import read

HERE = Path(__file__).parent
# Names of results, and the modules in benchmarks/ that made them.
BENCHMARKS = {
    "against": "against",
    "optuna-objectives": "optuna_objectives",
    "optuna-samplers": "optuna_samplers",
    "optuna-workers": "optuna_workers",
    "thompson-features": "thompson_features",
    "control": "control",
}
MARKS = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def maker(name: str) -> Experiment:
    """What made the results of that name."""
    if name not in BENCHMARKS:
        return experiment(name)
    folder = str(HERE.parents[1] / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(BENCHMARKS[name]).EXPERIMENT


def records_of(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header of a results file, and its trials that count."""
    header, records, _ = read(file, maker)
    return header, records


def report_of(file: Path) -> Report:
    """What a results file says."""
    header, records = records_of(file)
    of = maker(header["experiment"])
    return of.report(records, of.settings(header["scale"]))


def section(stem: str) -> str:
    """The figure, the table and the remarks of one results file, in Markdown."""
    report = report_of(HERE / "files" / f"{stem}.jsonl")
    remarks = "".join(f"\n{remark}\n" for remark in report.remarks)
    links = ", ".join(
        f"[{kind}](files/{stem}.{kind.lower()})" for kind in ("PDF", "CSV")
    )
    return (
        f"![{report.table.title}](files/{stem}.png)\n\n"
        f"{report.table.title}. Also as {links}, every trial in [{stem}.jsonl](files/{stem}.jsonl).\n\n"
        f"{report.table.markdown()}{remarks}"
    )


def refreshed(page: str) -> str:
    """The page with all that stands between marks made anew."""
    return MARKS.sub(lambda found: found[1] + section(found[2]) + found[3], page)


def main() -> None:
    for file in sorted((HERE / "files").glob("*.jsonl")):
        for path in report_of(file).save(file.with_suffix("")):
            if path.suffix == ".md":  # the pages hold the tables
                path.unlink()
    for page in sorted(HERE.glob("*.md")):
        page.write_text(refreshed(page.read_text()))


if __name__ == "__main__":
    main()
