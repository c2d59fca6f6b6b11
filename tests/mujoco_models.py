"""Compiles each MuJoCo model once a process: that takes longer than an episode, and each evaluation
makes several environments of the same model."""

import copy
import sys
from pathlib import Path


def compile_once():
    """From now on, give copies of models that were compiled before, if MuJoCo has been imported."""
    mujoco = sys.modules.get("mujoco")
    compiler = getattr(getattr(mujoco, "MjModel", None), "from_xml_path", None)
    if mujoco is None or compiler is None or isinstance(compiler, Kept):
        return
    mujoco.MjModel.from_xml_path = Kept(compiler)


class Kept:
    """Compiles models and keeps those whose text is all of them."""

    def __init__(self, compiler):
        self.compiler = compiler
        self.models = {}

    def __call__(self, path, *rest, **named):
        text = Path(path).read_bytes()
        if rest or named or b"file=" in text:
            return self.compiler(path, *rest, **named)
        if text not in self.models:
            self.models[text] = self.compiler(path)
        return copy.copy(self.models[text])
