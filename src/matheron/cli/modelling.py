"""The command `matheron fit`: it fits a model to a table, prints its hyperparameters and saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from . import options
from .options import ROWS, Voice, check_writable, output_option


def fit(
    data: options.DataOption,
    target: options.Target,
    inputs: options.Inputs = None,
    exclude: options.Exclude = None,
    encode: options.Encode = None,
    kernel: options.KernelOption = None,
    noise: options.NoiseOption = None,
    likelihood: options.LikelihoodOption = None,
    exposure: options.Exposure = None,
    trials: options.Trials = None,
    rows: options.Rows = ROWS,
    seed: options.Seed = 0,
    save: Annotated[
        Path | None, output_option(metavar="FILE", help="File for the model, .safetensors.", dir_okay=False)
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a Gaussian process to a column of a table and print its hyperparameters in the table's units.

    Example: matheron fit wells.csv --target depth --inputs east,north --save model.safetensors

    The model has a scaled kernel with a lengthscale for each input, a constant mean, and noise. Rows with empty cells
    are left out. Dates become days, hours or seconds since the first date. With --likelihood, the latent function is
    fitted by Laplace's approximation. `matheron sample` accepts the saved model in place of the table.
    """
    from ..core.saving import save as store
    from ..fitting import summary
    from ..tables.encoding import OutcomeColumn, listed
    from .data import check_kernel, fitted, read_dataset

    voice = Voice(quiet, as_json)
    check_writable(save, read=[data])
    check_kernel(kernel)
    with voice.warnings_in_words():
        lists = {"inputs": listed(inputs), "exclude": listed(exclude), "encode": listed(encode)}
        outcomes = OutcomeColumn.of(likelihood, exposure, trials)
        dataset = read_dataset(data, target, rows=rows, seed=seed, voice=voice, outcomes=outcomes, **lists)
        gp = fitted(dataset, kernel, noise, seed, voice)
        facts = summary(gp, dataset.columns.names)
        voice.say(str(facts))
        if save is not None:
            store(gp, save, dataset.notes())
            voice.say(f"The model is in {save}")
    voice.result(
        {
            "observations": gp.num_data,
            "rows_with_gaps": dataset.rows_with_gaps,
            "inputs": dataset.columns.names,
            "target": target,
            "hyperparameters": facts.rows,
            "log_likelihood": facts.log_likelihood,
            "saved": save,
        }
    )
