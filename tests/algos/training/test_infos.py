"""An algorithm that learns from infos names them in its loader; nothing else is to be done."""

import pytest

import orlog
from orlog.algos.bc import BC, BCConfig
from orlog.algos.training.online import check_explores
from orlog.algos.training.runs import OnlineRecord
from orlog.errors import NotFoundError, SchemaError
from tests.training import train_run

SMALL = {"hidden": [8], "batch_size": 8}
SEEN = []


class Watching(BC):
    """BC that looks at an info of its steps."""

    INFO = "behavior_goal"

    @classmethod
    def loader(cls, config):
        path, settings = BC.loader(config)
        return path, {**settings, "infos": (cls.INFO,)}

    def update(self, batch):
        SEEN.append(tuple(batch.infos[self.INFO].shape))
        return super().update(batch)


class Lacking(Watching):
    INFO = "behaviour_goal"


@pytest.mark.parametrize("where", ["ram", "mmap"])
def test_its_batches_have_them(mini, tmp_path, where):
    SEEN.clear()
    train_run(Watching, mini, tmp_path, seed=0, steps=3, settings=SMALL, evaluations=0, where=where)
    assert SEEN == [(8, 2)] * 3


def test_data_without_them_are_refused(mini, tmp_path):
    with pytest.raises(NotFoundError, match=r"no info 'behaviour_goal'; did you mean behavior_goal"):
        train_run(Lacking, mini, tmp_path, seed=0, steps=3, settings=SMALL, evaluations=0)


def test_it_is_not_fine_tuned_since_environments_give_none(mini):
    online = OnlineRecord(prior=None, random_steps=0)
    with pytest.raises(SchemaError, match=r"learns from infos \(behavior_goal\), which are not kept"):
        check_explores(Watching, BCConfig(), mini, orlog.load_arrays(mini), online)
