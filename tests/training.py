"""Trains a run with options as keywords, as the tests write them."""

from orlog.algos.training import finetuning
from orlog.algos.training import train as training
from orlog.algos.training.options import Hooks, TrainOptions
from orlog.algos.training.runs import OnlineRecord


def train_run(algorithm, dataset, folder, **given):
    """Train with the keywords of `TrainOptions`, of `Hooks` and of `train_run` itself."""
    log = given.get("log")
    hooks = {name: given.pop(name) for name in Hooks.__slots__ if name in given and name != "log"}
    if callable(log):
        hooks["log"] = given.pop("log")
    rest = {name: given.pop(name) for name in ("resume", "where") if name in given}
    options = TrainOptions(**given)
    return training.train_run(algorithm, dataset, folder, options, Hooks(**hooks), **rest)


def finetune_run(run, folder, **given):
    """Fine-tune with the keywords of `TrainOptions`, of `OnlineRecord` and of `finetune_run` itself."""
    fields = [name for name in TrainOptions.__struct_fields__ if name in given]
    options = TrainOptions(**{name: given.pop(name) for name in fields})
    acting = [name for name in OnlineRecord.__struct_fields__ if name in given]
    online = OnlineRecord(**{name: given.pop(name) for name in acting})
    return finetuning.finetune_run(run, folder, options, online, **given)[1]
