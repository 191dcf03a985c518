"""`matheron fit`: a model of a table, its hyperparameters printed, and kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Data, Encode, Inputs, Quiet, Seed, Target, Voice, check_writable


def fit(
    data: Data,
    target: Target,
    inputs: Inputs = None,
    encode: Encode = None,
    save: Annotated[Path | None, typer.Option(help="A file for the model, .safetensors.", dir_okay=False)] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a Gaussian process to a column of a table, and say what it found, in the table's own units.

    The model is a Matern-5/2 kernel with a lengthscale per input, a scale, a constant mean and noise. `matheron sample`
    takes the saved model in place of the table.
    """
    from ..columns import listed
    from ..fitting import summary
    from ..store import save as store
    from .data import fitted, read_dataset

    voice = Voice(quiet, as_json)
    check_writable(save, read=[data])
    with voice.warnings_in_words():
        dataset = read_dataset(data, target, listed(inputs), listed(encode), voice)
        gp = fitted(dataset, seed, voice)
        facts = summary(gp, dataset.columns.names)
        voice.say(str(facts))
        if save is not None:
            store(gp, save, dataset.notes())
            voice.say(f"The model is in {save}")
    voice.result(
        {
            "observations": gp.num_data,
            "inputs": dataset.columns.names,
            "target": target,
            "hyperparameters": facts.rows,
            "log_likelihood": facts.log_likelihood,
            "saved": save,
        }
    )
