"""What a sweep's report holds: results, and what they are evidence of."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from orlog.experiments.reproducing import Result, judge
from orlog.experiments.result_folders import result_folder
from orlog.experiments.stored_results import StoredResult
from orlog.normalize.baselines import Baseline
from orlog.normalize.references import references_from_json

REPORT_FILE = "report.json"


REPORT_PAGE = "report.html"


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the numbers of one algorithm on one dataset come from.

    Attributes:
        results: The result of each seed.
        references: Reference returns that anchor scores, as JSON; None if none are known.
        baseline: The recorded baseline; None if there is none.
    """

    results: list[StoredResult]
    references: dict[str, Any] | None
    baseline: Baseline | None

    @property
    def title(self) -> str:
        """What errors call it."""
        record = self.results[0].record
        return f"{record.algorithm} on {record.dataset}"

    def result(self) -> Result:
        """Return the result that follows from it.

        Raises ValueError if the reference returns are malformed; SchemaError if a return is not a number, or
        seeds have different numbers of episodes.
        """
        references = None if self.references is None else references_from_json(self.references)
        seeds = {one.job.seed: one for one in self.results}
        return judge(
            self.results[0].record,
            {seed: one.evaluation for seed, one in seeds.items()},
            references=references,
            baseline=self.baseline,
            updates_per_second={seed: one.updates_per_second for seed, one in seeds.items()},
            folders={seed: result_folder(one.key) for seed, one in seeds.items()},
            curves={
                seed: [(point.step, float(np.mean(point.returns))) for point in one.curve]
                for seed, one in seeds.items()
            },
        )


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `report.json` holds.

    Attributes:
        report_version: Version of this layout.
        title: Heading of the page.
        evidence: What the numbers come from.
        left_out: Lines on algorithms that do not apply to a dataset.
        failures: Lines on jobs and datasets that failed.
        numbers: What follows from the evidence.
    """

    report_version: int
    title: str
    evidence: list[Evidence]
    left_out: list[str]
    failures: list[str]
    numbers: dict[str, Any]
