"""Trains small runs, as the tests need them."""

import itertools

import orlog
from orlog.algos.training import train as training
from orlog.algos.training.runs import TrainOptions, read_metrics

SMALL = {"hidden": [4], "batch_size": 8}


def short(algorithm, dataset, folder, **options):
    """Train two steps without evaluations and in silence, or as is said."""
    usual = {"steps": 2, "evaluations": 0, "settings": SMALL, "progress": False}
    return orlog.train(algorithm, dataset, out=folder, **{**usual, **options})


def logged(folder):
    """Return the log of a run without times."""
    return [{**line, "seconds": 0} for line in read_metrics(folder)]


def stop_after(steps):
    """Return what asks a run to stop after so many steps."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


def train_run(algorithm, dataset, folder, **given):
    """Train with the keywords of `TrainOptions`, of `Hooks` and of `train_run` itself."""
    log = given.get("log")
    hooks = {name: given.pop(name) for name in training.Hooks.__slots__ if name in given and name != "log"}
    if callable(log):
        hooks["log"] = given.pop("log")
    rest = {name: given.pop(name) for name in ("resume", "where") if name in given}
    options = TrainOptions(**given)
    return training.train_run(algorithm, dataset, folder, options, training.Hooks(**hooks), **rest)
