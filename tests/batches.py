"""What tests read of batches."""

import dataclasses


def columns(batch):
    """Return the names of the fields that a batch has, or that each of a class has, but for infos."""
    names = [one.name for one in dataclasses.fields(batch) if one.name != "infos"]
    if isinstance(batch, type):
        needed = {one.name for one in dataclasses.fields(batch) if one.default is dataclasses.MISSING}
        return [name for name in names if name in needed]
    return [name for name in names if getattr(batch, name) is not None]
