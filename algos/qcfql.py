"""QC-FQL: flow Q-learning over chunks of actions (Li, Zhou and Levine 2025, https://arxiv.org/abs/2507.07969).

FQL (`algos/fql.py`) whose action A is the next `chunk_length` = h actions together:

    L_v(theta) = E || m (v(s, x_t, t) - (A - z)) ||^2,   x_t = (1 - t) z + t A         (flow matching)
                 m is 1 at actions before the end of the episode, else 0
    L_mu(omega) as in FQL
    L_Q(phi)   = E[ m_h ( R + discount^h (1 - termination) Q_target(s_h, clip(mu(s_h, z'))) - Q(s, A) )^2 ]
                 R = sum of discount^k r_k over the chunk, m_h: only chunks that are whole

Means count what a mask leaves out. In an episode the policy acts out a whole chunk before it looks again. A
termination ends the value, a truncation after a whole chunk bootstraps.

Defaults are the authors' (`manifests/recorded/published/hyperparameters.json`, QC-FQL / official). They choose the
distillation weight for each environment.

What differs from the authors' code (ColinQiyangLi/qc at 48283b4, `agents/acfql.py` and `main.py`, in JAX), besides
what `fql` lists:
- Only QC-FQL. Missing: QC (the best of several chunks of the flow), sums of n rewards without chunks, Fourier
  features of the time, weight decay.
- `orlog finetune` does what their `main.py` does after 1 M steps: it acts out whole chunks, 5,000 steps without an
  update and then each with one, on chunks drawn from the data and the new steps alike (`--prior even`, the default
  here). Scores of `orlog train` compare with theirs at 1 M steps, those after as many of `orlog finetune` with theirs
  at 2 M. The last `chunk_length` - 1 steps taken may begin a chunk here, which is not whole, and in theirs not. They
  keep 2 M steps, of which new ones replace the oldest; here all are kept.
- Slots after the end of an episode hold zeros, theirs the actions of the next episode. No loss is taken there, but
  the flow and the critics see them among their inputs.
`tests/algos/recorded` holds parameters after 100 of its updates.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from orlog.algos.fql import FQL, FlowSettings
from orlog.algos.settings import Count, NotNegative
from orlog.loaders.batch import Batch


class QCFQLConfig(FlowSettings, frozen=True, kw_only=True):
    """Settings of flow Q-learning over chunks."""

    chunk_length: Count = 5
    """Actions in a chunk, which the policy acts out one after the other."""
    distillation_weight: NotNegative = 100.0


class QCFQL(FQL):
    """Flow Q-learning over chunks of continuous actions."""

    TITLE = "QC-FQL"
    CONFIG: Any = QCFQLConfig
    FINETUNING: ClassVar[dict[str, Any]] = {"prior": None, "warm_up_steps": 5000}

    @staticmethod
    def loader(config: Any) -> tuple[str, dict[str, Any]]:
        """Return the loader of its batches: chunks of actions."""
        return "orlog.loaders.chunks:action_chunks", {
            "batch_size": config.batch_size,
            "length": config.chunk_length,
            "discount": config.discount,
        }

    @property
    def action_dim(self) -> int:
        """Numbers of a chunk."""
        return len(self.scaling.action_low) * int(self.config.chunk_length)

    def taken(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the chunks in [-1, 1], which of their numbers count, which chunks are whole, and the discounts."""
        valid = batch.valid.unsqueeze(-1).expand_as(batch.actions).flatten(1)
        chunks = self.scaling.actions_to_unit(batch.actions).flatten(1) * valid
        return chunks, valid, batch.valid[:, -1], batch.discounts
