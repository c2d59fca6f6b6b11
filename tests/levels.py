"""How often tests repeat what they repeat: examples, kills, damaged documents, hostile servers.

`make test` takes some of each and `make test-all` takes all. A test that repeats less than all of it
in `make test` asks `scaled` for the number and carries the marker `scaled`, which hypothesis tests
get by themselves. What makes no sense in small numbers carries `thorough` instead and runs in
`make test-all` only. (`ORLOG_TESTS=all pytest -m "scaled or thorough"` runs what is more than in `make test`.)
The few that take minutes each ask `most` for the number: `make test-release` repeats them in full, before a
release and after a change of what they test.
"""

import os

VARIABLE = "ORLOG_TESTS"
RELEASE = os.environ.get(VARIABLE) == "release"
THOROUGH = RELEASE or os.environ.get(VARIABLE) == "all"


def scaled(all_of_them, some=None):
    """Return how often to repeat: all of them, or in `make test` some (an eighth, or eight)."""
    if THOROUGH:
        return all_of_them
    return min(all_of_them, max(8, all_of_them // 8) if some is None else some)


def most(all_of_them, in_ci):
    """Return how often to repeat what takes minutes: all of them before a release, fewer in `make test-all`."""
    return all_of_them if RELEASE else in_ci
