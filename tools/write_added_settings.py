"""Writes which settings recorded baselines do not have, because their algorithms got them later.

python tools/write_added_settings.py

A setting that is added does by default what was done before, or the algorithm's configuration says in
`RECORDED_BEFORE` what that was. The table lets results be shown without importing any algorithm.
"""

from __future__ import annotations

from typing import Any

from orlog.algos.settings import complete_config
from orlog.manifests.documents import write_json
from orlog.manifests.shipped import records_folder
from orlog.normalize.references import added_settings_file, read_baseline

Added = dict[str, dict[str, dict[str, Any]]]


def added_settings() -> Added:
    """Return, by algorithm and dataset, the settings that a recorded baseline does not have."""
    found: Added = {}
    for path in sorted(records_folder().rglob("baselines/*.json")):
        name = path.parents[1].relative_to(records_folder()).as_posix()
        baseline = read_baseline(path.stem, name)
        assert baseline is not None
        config = complete_config(baseline.algorithm, baseline.config)
        added = {key: value for key, value in config.items() if key not in baseline.config}
        if added:
            found.setdefault(baseline.algorithm, {})[name] = added
    return found


if __name__ == "__main__":
    write_json(added_settings_file(), added_settings())
