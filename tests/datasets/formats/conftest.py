"""Sound files of every format, written once for the tests of a process."""

import pytest


@pytest.fixture(scope="session")
def samples(tmp_path_factory):
    """Write sound files of every format; a test leaves them as they were."""
    from tests.fuzz.samples import write_samples  # imports the modules that write them

    return write_samples(tmp_path_factory.mktemp("samples"))
