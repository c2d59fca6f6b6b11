import errno
import pickle

import pytest

from orlog import errors


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith("Error")])
def test_every_error_comes_back_whole_from_another_process(name):
    error = getattr(errors, name)("what went wrong")
    error.install = "orlog[plots]"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == "what went wrong"
    assert back.install == "orlog[plots]"
    is_integrity = issubclass(type(error), errors.IntegrityError)
    assert back.exit_code == (3 if is_integrity else 1)


def test_a_storage_error_keeps_what_the_disk_said():
    error = errors.StorageError("the disk is full.", errno=errno.ENOSPC)
    assert pickle.loads(pickle.dumps(error)).errno == errno.ENOSPC
