"""Offline-RL datasets that are pinned byte by byte, loaded fast, and scored honestly.

import orlog

ds = orlog.load_dataset("pointmaze/umaze-v1", build=True)
for batch in orlog.transitions(ds, batch_size=256, seed=0):
    ...

Importing this package is light: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orlog.algos.training.runs import Run as Run
    from orlog.datasets.audit.audit import audit as audit
    from orlog.datasets.columns.episode import Episode as Episode
    from orlog.datasets.download.download import download_dataset as download_dataset
    from orlog.datasets.download.download import repair_dataset as repair_dataset
    from orlog.datasets.exporting import export_dataset as export_dataset
    from orlog.datasets.importing import import_dataset as import_dataset
    from orlog.datasets.listing import list_datasets as list_datasets
    from orlog.datasets.loading import load_dataset as load_dataset
    from orlog.datasets.publish.publish import publish_dataset as publish_dataset
    from orlog.datasets.reading.combining import combine_datasets as combine_datasets
    from orlog.datasets.reading.combining import split_dataset as split_dataset
    from orlog.datasets.reading.dataset import Dataset as Dataset
    from orlog.datasets.reading.verifying import verify_store as verify_store
    from orlog.datasets.recipes.build import build_dataset as build_dataset
    from orlog.datasets.recording.converting import convert_dataset as convert_dataset
    from orlog.datasets.recording.parallel import record_parallel as record_parallel
    from orlog.datasets.recording.recorder import record as record
    from orlog.datasets.recording.saving import save_dataset as save_dataset
    from orlog.datasets.recording.vector import record_vector as record_vector
    from orlog.datasets.recording.writer import DatasetWriter as DatasetWriter
    from orlog.datasets.store.encoding import choose_encoding as choose_encoding
    from orlog.errors import OrlogError as OrlogError
    from orlog.experiments.policies import RunPolicy as RunPolicy
    from orlog.experiments.policies import load_policy as load_policy
    from orlog.experiments.running import RunResult as RunResult
    from orlog.experiments.running import evaluate as evaluate
    from orlog.experiments.running import finetune as finetune
    from orlog.experiments.running import train as train
    from orlog.loaders.agent_transitions import agent_transitions as agent_transitions
    from orlog.loaders.agent_transitions import load_agents as load_agents
    from orlog.loaders.arrays.arrays import Arrays as Arrays
    from orlog.loaders.arrays.places import load_arrays as load_arrays
    from orlog.loaders.batch import AgentBatch as AgentBatch
    from orlog.loaders.batch import Batch as Batch
    from orlog.loaders.batch import ChunkBatch as ChunkBatch
    from orlog.loaders.batch import GoalBatch as GoalBatch
    from orlog.loaders.batch import NextActionBatch as NextActionBatch
    from orlog.loaders.batch import NStepBatch as NStepBatch
    from orlog.loaders.batch import SequenceBatch as SequenceBatch
    from orlog.loaders.batch import StructuredBatch as StructuredBatch
    from orlog.loaders.batch import TokenBatch as TokenBatch
    from orlog.loaders.batch import WindowBatch as WindowBatch
    from orlog.loaders.chunks import action_chunks as action_chunks
    from orlog.loaders.episodes import EpisodeBatch as EpisodeBatch
    from orlog.loaders.episodes import PackedEpisodeBatch as PackedEpisodeBatch
    from orlog.loaders.episodes import episodes as episodes
    from orlog.loaders.frames import frame_stacks as frame_stacks
    from orlog.loaders.goals import GoalMixture as GoalMixture
    from orlog.loaders.goals import goals as goals
    from orlog.loaders.preferences import PreferenceBatch as PreferenceBatch
    from orlog.loaders.preferences import preferences as preferences
    from orlog.loaders.priorities import PrioritizedBatch as PrioritizedBatch
    from orlog.loaders.priorities import prioritized_transitions as prioritized_transitions
    from orlog.loaders.scalarize import scalarize as scalarize
    from orlog.loaders.sequences import sequences as sequences
    from orlog.loaders.streaming import stream_transitions as stream_transitions
    from orlog.loaders.subgoals import SubgoalBatch as SubgoalBatch
    from orlog.loaders.subgoals import subgoals as subgoals
    from orlog.loaders.token_sequences import token_sequences as token_sequences
    from orlog.loaders.token_sequences import train_tokenizer as train_tokenizer
    from orlog.loaders.transitions import Transitions as Transitions
    from orlog.loaders.transitions import transitions as transitions
    from orlog.loaders.weights import weighted as weighted
    from orlog.loaders.windows import windows as windows
    from orlog.manifests.benchmarks import benchmark_dataset as benchmark_dataset
    from orlog.reports.runs_seen import runs as runs
    from orlog.scoring.baseline_scores import baselines as baselines
    from orlog.scoring.measuring import measure_references as measure_references
    from orlog.scoring.normalized_scores import SafeScore as SafeScore
    from orlog.scoring.normalized_scores import normalized_score as normalized_score
    from orlog.scoring.normalized_scores import normalized_task_scores as normalized_task_scores
    from orlog.scoring.off_policy import OffPolicyResult as OffPolicyResult
    from orlog.scoring.off_policy import evaluate_off_policy as evaluate_off_policy
    from orlog.scoring.references import references as references

__version__ = "0.2.0"

_HOMES = {
    "AgentBatch": "orlog.loaders.batch",
    "Arrays": "orlog.loaders.arrays.arrays",
    "Batch": "orlog.loaders.batch",
    "ChunkBatch": "orlog.loaders.batch",
    "Dataset": "orlog.datasets.reading.dataset",
    "DatasetWriter": "orlog.datasets.recording.writer",
    "Episode": "orlog.datasets.columns.episode",
    "EpisodeBatch": "orlog.loaders.episodes",
    "GoalBatch": "orlog.loaders.batch",
    "GoalMixture": "orlog.loaders.goals",
    "NStepBatch": "orlog.loaders.batch",
    "NextActionBatch": "orlog.loaders.batch",
    "OffPolicyResult": "orlog.scoring.off_policy",
    "OrlogError": "orlog.errors",
    "PackedEpisodeBatch": "orlog.loaders.episodes",
    "PreferenceBatch": "orlog.loaders.preferences",
    "PrioritizedBatch": "orlog.loaders.priorities",
    "SafeScore": "orlog.scoring.normalized_scores",
    "SequenceBatch": "orlog.loaders.batch",
    "StructuredBatch": "orlog.loaders.batch",
    "SubgoalBatch": "orlog.loaders.subgoals",
    "Run": "orlog.algos.training.runs",
    "RunPolicy": "orlog.experiments.policies",
    "RunResult": "orlog.experiments.running",
    "Transitions": "orlog.loaders.transitions",
    "WindowBatch": "orlog.loaders.batch",
    "action_chunks": "orlog.loaders.chunks",
    "agent_transitions": "orlog.loaders.agent_transitions",
    "audit": "orlog.datasets.audit.audit",
    "baselines": "orlog.scoring.baseline_scores",
    "benchmark_dataset": "orlog.manifests.benchmarks",
    "build_dataset": "orlog.datasets.recipes.build",
    "choose_encoding": "orlog.datasets.store.encoding",
    "combine_datasets": "orlog.datasets.reading.combining",
    "convert_dataset": "orlog.datasets.recording.converting",
    "download_dataset": "orlog.datasets.download.download",
    "train_tokenizer": "orlog.loaders.token_sequences",
    "token_sequences": "orlog.loaders.token_sequences",
    "TokenBatch": "orlog.loaders.batch",
    "episodes": "orlog.loaders.episodes",
    "evaluate": "orlog.experiments.running",
    "evaluate_off_policy": "orlog.scoring.off_policy",
    "finetune": "orlog.experiments.running",
    "frame_stacks": "orlog.loaders.frames",
    "goals": "orlog.loaders.goals",
    "export_dataset": "orlog.datasets.exporting",
    "import_dataset": "orlog.datasets.importing",
    "list_datasets": "orlog.datasets.listing",
    "load_agents": "orlog.loaders.agent_transitions",
    "load_arrays": "orlog.loaders.arrays.places",
    "load_dataset": "orlog.datasets.loading",
    "load_policy": "orlog.experiments.policies",
    "measure_references": "orlog.scoring.measuring",
    "normalized_score": "orlog.scoring.normalized_scores",
    "normalized_task_scores": "orlog.scoring.normalized_scores",
    "preferences": "orlog.loaders.preferences",
    "prioritized_transitions": "orlog.loaders.priorities",
    "publish_dataset": "orlog.datasets.publish.publish",
    "record": "orlog.datasets.recording.recorder",
    "record_parallel": "orlog.datasets.recording.parallel",
    "record_vector": "orlog.datasets.recording.vector",
    "references": "orlog.scoring.references",
    "repair_dataset": "orlog.datasets.download.download",
    "runs": "orlog.reports.runs_seen",
    "save_dataset": "orlog.datasets.recording.saving",
    "scalarize": "orlog.loaders.scalarize",
    "sequences": "orlog.loaders.sequences",
    "split_dataset": "orlog.datasets.reading.combining",
    "stream_transitions": "orlog.loaders.streaming",
    "subgoals": "orlog.loaders.subgoals",
    "train": "orlog.experiments.running",
    "transitions": "orlog.loaders.transitions",
    "verify_store": "orlog.datasets.reading.verifying",
    "weighted": "orlog.loaders.weights",
    "windows": "orlog.loaders.windows",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'orlog' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
