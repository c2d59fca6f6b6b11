"""Learning curves of the runs in a folder, as a picture. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orlog.datasets.looking.figures import line_colors, new_figure
from orlog.experiments.run_groups import RunGroup

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def curves_plot(groups: Sequence[RunGroup], *, success: bool = False) -> Figure:
    """Return the score over gradient steps, beside each other for each dataset.

    With `success` it is the share of successful episodes, where the environment tells.

    A line is the mean over seeds, its band the interval of that mean at 95 %, where there are seeds
    enough; groups without a learning curve are left out.

    Raises ValueError if none has one; MissingExtraError if matplotlib is not installed.
    """
    drawn = [group for group in groups if len(group.curve(success=success)[0])]
    if not drawn and success:
        raise ValueError(
            "no run has a learning curve of successes: the environments do not tell, or the runs were "
            "trained without evaluations, or by an orlog that did not record them."
        )
    if not drawn:
        raise ValueError(
            "no run has a learning curve: they were trained without evaluations, or not far enough."
        )
    datasets = list(dict.fromkeys(group.shown_dataset for group in drawn))
    colors = line_colors(group.label for group in drawn)
    most = max(sum(group.shown_dataset == dataset for group in drawn) for dataset in datasets)
    figure, axes = new_figure(len(datasets), width=6.5, height=3.8 + 0.2 * most, in_row=3)
    for group in drawn:
        one, shade = axes[datasets.index(group.shown_dataset)], colors[group.label]
        steps, means, low, high = group.curve(success=success)
        count = sum(bool(run.success_points if success else run.points) for run in group.runs)
        label = f"{group.label} ({count} seed{'s' if count > 1 else ''})"
        one.plot(steps, means, color=shade, marker="o", markersize=3, label=label)
        one.fill_between(steps, low, high, color=shade, alpha=0.2, linewidth=0)
    for one, dataset in zip(axes, datasets, strict=True):
        there = [group for group in drawn if group.shown_dataset == dataset]
        is_normalized = all(run.is_normalized for group in there for run in group.runs)
        one.set_title(dataset)
        one.set_xlabel("gradient steps")
        if success:
            one.set_ylabel("share of successful episodes")
            one.set_ylim(-0.02, 1.02)
        else:
            one.set_ylabel("normalized score (0 random, 100 expert)" if is_normalized else "return")
        # Below the axes, where it covers no curve.
        one.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize="small")
    return figure
