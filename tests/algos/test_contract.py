"""What holds for every algorithm in each of its forms, also for one whose file came just now."""

import dataclasses
import importlib
import json
import math
import re

import msgspec
import numpy as np
import pytest
import torch
from msgspec import inspect
from torch import Tensor, nn

from orlog.algos.algorithms import ALGORITHMS, algorithm_forms, algorithm_name, takes_goals
from orlog.algos.networks import make_generator
from orlog.algos.settings import make_config
from orlog.algos.training.runs import load_checkpoint, save_checkpoint, state_names
from tests.algos import plain
from tests.algos.conftest import SPACE

FORMS = {
    form.__name__: form
    for name in ALGORITHMS
    for form in algorithm_forms(name)
    if form.OBSERVATIONS != ("numbered",)  # whose batches are tables: each has a test of its own
}
VARIANTS = [
    ("CQL", {"target_gap": 1.0, "cloning_steps": 2}),
    ("CalQL", {"target_gap": None}),
    ("IQL", {"steps": 3}),
    ("FQL", {"normalize_values": True, "target": "smallest"}),
    ("TRL", {"extraction": "frs"}),
]


def settings_of(form):
    return form.CONFIG.__struct_fields__


def file_of(form):
    """Return the name of an algorithm's file, by which tests find what they know of it."""
    return form.__module__.rpartition(".")[2]


SETTINGS_OF = {"DQC": ("dqc_n_steps",), "QAM": ("qam_edit", "qam_distilled"), "TRL": ("trl_parts",)}
"""Other recorded settings of a form."""
CASES = json.loads((plain.RECORDED / "updates.json").read_text("utf-8"))
IN_WORDS = [form for form in FORMS.values() if "text" in form.ACTIONS]
"""Those whose batches are tokens; `test_text.py` has what is different of them."""
VALUED = [
    form
    for form in FORMS.values()
    if "discount" in settings_of(form) and not takes_goals(form) and form not in IN_WORDS
]
CLONING = [form for form in FORMS.values() if not getattr(form, "REWARDS", True) and form not in IN_WORDS]
RECORDED = {
    path.stem: form
    for path in sorted(plain.RECORDED.glob("*.npz"))
    for form in FORMS.values()
    if (path.stem == file_of(form) or path.stem in SETTINGS_OF.get(form.__name__, ()))
}
PLAIN = {
    name: kind
    for file in ("choices", "chunks", "goals", "regression", "safety", "teams")
    for name, kind in vars(importlib.import_module(f"tests.algos.updates.{file}")).items()
    if name in FORMS and (file in ("chunks", "goals") or FORMS[name] not in RECORDED.values())
}
"""Implementations of the equations in NumPy, of those that no other code recorded, and of new ones."""
PLAIN_CASES = [
    pytest.param(FORMS[name], kind, case, id=f"{name}-{case}") for name, kind in PLAIN.items() for case in kind.CASES
]


@pytest.fixture(params=[*FORMS.values()], ids=[*FORMS])
def form(request):
    """Return the class of each form of each algorithm."""
    return request.param


def state(algorithm, folder):
    save_checkpoint(algorithm, folder / "state", metadata={})
    return (folder / "state").read_bytes()


def updated(algorithm, *batches):
    for batch in batches:
        algorithm.update(batch)
    return algorithm


def copied(algorithm):
    return {name: one.clone() for name, one in plain.tensors_of(algorithm).items()}


def differing(one, other):
    """Return the names of the parameters that are not the same in two algorithms."""
    others = plain.tensors_of(other)
    return {name for name, value in plain.tensors_of(one).items() if not torch.equal(value, others[name])}


def tensors(batch):
    """Return a copy of the tensors of a batch."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: one.clone() for name, one in fields.items() if isinstance(one, Tensor)}


# --- training


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("form", "kind", "settings"), PLAIN_CASES)
def test_updates_equal_a_plain_implementation(form, kind, settings, make, batches_of):
    both = {**plain.fast_settings(settings_of(form)), **kind.SETTINGS, **settings}
    algorithm = make(form, seed=3, **both)
    kind.prepare(algorithm)
    expected = kind(algorithm, seed=3)
    for batch in batches_of(algorithm, kind.UPDATES):
        in_double = batch.map(lambda values: values.double() if values.is_floating_point() else values)
        shown = expected.update(in_double) or {}
        metrics = algorithm.update(in_double)
        for name, value in shown.items():
            assert metrics[name].item() == pytest.approx(value, rel=1e-5), name
    limit = {"rtol": 0, "atol": kind.TOLERANCE}
    for name, values in plain.tensors_of(algorithm).items():
        np.testing.assert_allclose(values, expected.parameters[name], **limit, err_msg=name)
    drawn = torch.randn((2, 7, 3), generator=make_generator(0, 0)) * 3
    goals = drawn[1][:, : plain.width_of_goals(algorithm)]
    wanted = expected.actions(drawn[0], goals)
    if wanted is not None:
        acted = algorithm.act(drawn[0], *([goals] if takes_goals(form) else []))
        np.testing.assert_allclose(acted, wanted, rtol=0, atol=10 * kind.TOLERANCE)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("name", "index"), [(name, index) for name in CASES for index in range(len(CASES[name]))])
def test_updates_are_those_that_were_recorded(name, index, make, batches_of):
    """They were recorded when each agreed with an implementation of its equations in NumPy; a new one has none."""
    settings, expected = CASES[name][index]
    algorithm = make(FORMS[name], seed=3, **settings)
    assert sums_after(algorithm, batches_of(algorithm, 6)) == pytest.approx(expected, rel=1e-7)


def sums_after(algorithm, batches):
    """Return the sums of parameters, and of their absolute values, after updates."""
    updated(algorithm, *(batch.map(lambda one: one.double() if one.is_floating_point() else one) for batch in batches))
    parts = plain.tensors_of(algorithm).values()
    return [sum(float(one.sum()) for one in parts), sum(float(one.abs().sum()) for one in parts)]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", RECORDED)
def test_parameters_after_100_updates_are_those_of_other_code(name):
    """That of the authors, of CORL, of d3rlpy or of OGBench; some of it computes in float32."""
    form, limits = RECORDED[name], {"EDAC": 1e-5, "IQL": 1e-8, "TRL": 1e-12}
    limits |= dict.fromkeys(("DQC", "FQL", "IFQL", "QAM", "QCFQL"), 1e-7)
    assert plain.difference_from_recorded(form, name) < limits.get(form.__name__, 1e-9)


def test_nothing_that_can_be_compared_is_left_out():
    recorded = {path.stem for path in plain.RECORDED.glob("*.npz")}
    assert recorded == {*RECORDED, "cql_discrete_frames"}


def test_the_seed_alone_decides_every_bit(form, make, batches_of, tmp_path):
    batches = batches_of(make(form), 3)
    one = updated(make(form, seed=4), *batches)
    torch.rand(5)
    assert state(one, tmp_path) == state(updated(make(form, seed=4), *batches), tmp_path)
    weights = {name for name in plain.tensors_of(one) if name.endswith("weight")}
    assert weights
    assert weights <= differing(one, updated(make(form, seed=5), *batches))


def test_no_global_generator_is_touched(form, make, batches_of):
    (batch,) = batches_of(make(form), 1)
    before, numbers = torch.random.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002 (it is what must not change)
    plain.act(updated(make(form), batch), torch.zeros(5, 3))
    after = np.random.get_state(legacy=False)  # noqa: NPY002 (as above)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert repr(after) == repr(numbers)


@pytest.mark.parametrize("done", [0, 2])
@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in FORMS), *VARIANTS])
def test_a_restored_state_goes_on_to_the_bit(name, settings, done, make, batches_of, tmp_path):
    whole = make(FORMS[name], **settings)
    batches = batches_of(whole, 4)
    updated(whole, *batches[:done])
    save_checkpoint(whole, tmp_path / "half", metadata={})
    resumed = make(FORMS[name], seed=9, **settings)
    load_checkpoint(resumed, tmp_path / "half")
    assert state(updated(resumed, *batches[done:]), tmp_path) == state(updated(whole, *batches[done:]), tmp_path)
    assert state(whole, tmp_path) != (tmp_path / "half").read_bytes()


def test_state_is_all_that_changes_and_constants_stay(form, make, batches_of):
    made = make(form)
    constants = {name: one for name, one in vars(made).items() if name not in state_names(made)}
    before = {name: contents(one) for name, one in constants.items()}
    updated(made, *batches_of(made, 2))
    for name, one in constants.items():
        assert getattr(made, name) is one
        assert contents(one) == before[name]
    kept = {id(one) for name in state_names(made) for one in parameters_in(getattr(made, name))}
    optimizers = [one for one in vars(made).values() if isinstance(one, torch.optim.Optimizer)]
    trained = [one for made_by in optimizers for group in made_by.param_groups for one in group["params"]]
    assert trained
    assert {id(one) for one in trained} <= kept
    kinds = (nn.Module, nn.Parameter, torch.optim.Optimizer, torch.Generator)
    assert not any(isinstance(one, kinds) for one in constants.values())


def contents(value):
    """Return a copy of a value that can be compared."""
    if isinstance(value, Tensor):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {one.name: contents(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return value


def parameters_in(value):
    if isinstance(value, nn.Module):
        return list(value.parameters())
    return [value] if isinstance(value, nn.Parameter) else []


def test_targets_start_as_their_networks_and_follow_them_by_the_rate(form, make, batches_of):
    names = settings_of(form)
    once = {"updates": 1, "policy_interval": 2, "target_interval": 2}
    settings = {name: one for name, one in once.items() if name in names}
    made = make(form, **{**plain.fast_settings(names), "batch_size": 32, **settings})
    rate = getattr(made.config, "target_rate", 1.0)
    onlines = {name: name.removeprefix("target_") for name in plain.tensors_of(made) if name.startswith("target_")}
    assert bool(onlines) == ("target_rate" in names or "target_interval" in names)
    now, moved = copied(made), set()
    assert all(torch.equal(now[name], now[online]) for name, online in onlines.items())
    for batch in batches_of(made, 4):
        made.update(batch)
        before, now = now, copied(made)
        for name, online in onlines.items():
            if torch.equal(now[name], before[name]):
                continue
            # Some follow what the network was before its step, and others what it is after it.
            aims = [before[name].lerp(one[online], rate) for one in (before, now)]
            assert any(torch.allclose(now[name], one, rtol=1e-5, atol=1e-7) for one in aims), name
            moved.add(name)
    assert moved == {*onlines}
    targets = [getattr(made, name) for name in vars(made) if name.startswith("target_")]
    for one in (one for network in targets for one in parameters_in(network)):
        assert not one.requires_grad
        assert one.grad is None


def test_an_update_leaves_its_batch_as_it_was_and_gives_numbers(form, make, batches_of):
    made, names = make(form), []
    for batch in batches_of(made, 2):
        before = tensors(batch)
        metrics = made.update(batch)
        names.append([*metrics])
        for name, value in metrics.items():
            assert re.fullmatch(r"\w+/\w+", name)
            assert value.dim() == 0
            assert value.isfinite()
            assert not value.requires_grad
        for name, value in tensors(batch).items():
            assert torch.equal(value, before[name]), name
    assert names[0] == names[1] != []


def test_only_the_batch_is_read_and_never_again(form, make, batches_of, tmp_path):
    one, other = make(form), make(form)
    for batch in batches_of(one, 3):
        copy = batch.map(Tensor.clone)
        updated(one, batch)
        updated(other, copy)
        copy.map(lambda value: value.fill_(math.nan if value.is_floating_point() else 0))
    assert state(one, tmp_path) == state(other, tmp_path)


@pytest.mark.parametrize("form", VALUED)
def test_what_follows_a_termination_does_not_matter_and_a_truncation_does(form, make, batches_of):
    """Of conservative algorithms next states also propose actions, which is left out here."""
    names, weights = settings_of(form), ("conservative_weight", "cost_weight")
    is_sampled = "sampled_actions" in names
    settings = {name: 0.0 for name in weights if name in names and is_sampled}
    (batch,) = batches_of(make(form), 1)
    zeros, ones = torch.zeros_like(batch.terminations), torch.ones_like(batch.terminations)

    def after(given):
        return updated(make(form, **settings), given, given)

    ended = dataclasses.replace(batch, terminations=ones, truncations=zeros)
    cut = dataclasses.replace(batch, terminations=zeros, truncations=ones)
    for key in {"next_observations", "next_actions"} & {*tensors(batch)}:
        for one in (ended, cut):
            other = dataclasses.replace(one, **{key: getattr(one, key) * -3 + 1})
            assert bool(differing(after(one), after(other))) == (one is cut), key
    assert not differing(after(cut), after(dataclasses.replace(cut, truncations=zeros)))


@pytest.mark.parametrize("form", CLONING)
def test_cloning_looks_at_observations_and_actions_alone(form, make, batches_of):
    (batch,) = batches_of(make(form), 1)
    others = {*tensors(batch)} - {"observations", "actions", "actor_goals"}
    changed = {key: getattr(batch, key) * math.nan for key in others}
    other = dataclasses.replace(batch, **changed)
    assert not differing(*(updated(make(form), given) for given in (batch, other)))


# --- acting


def test_actions_are_those_of_the_space(form, make, batches_of, scaling):
    made = make(form)
    updated(made, *batches_of(made, 1))
    far = torch.randn(100, 3, generator=make_generator(0, 0)) * 1e3
    for observations in (far, far[:1]):
        actions = plain.act(made, observations)
        if form in IN_WORDS:
            assert all(isinstance(one, str) and one in SPACE for one in actions)
            continue
        assert not actions.requires_grad
        if "discrete" in form.ACTIONS:
            assert (actions.dtype, actions.shape) == (torch.int64, (len(observations),))
            assert {*actions.tolist()} <= {2, 3, 4}
        else:
            assert (actions.dtype, actions.shape) == (torch.float32, (len(observations), 2))
            assert (actions >= scaling.action_low - 1e-5).all()
            assert (actions <= scaling.action_high + 1e-5).all()
    if form not in IN_WORDS:
        assert len({*plain.act(made, far).flatten().tolist()}) > 1


def test_acting_does_not_change_training_and_evaluations_repeat(form, make, batches_of):
    one, other = make(form), make(form)
    batches = batches_of(one, 2)
    observations = torch.randn(32, 3, generator=make_generator(0, 0))
    given = [["A room."] * 32] if form in IN_WORDS else [observations]
    if takes_goals(form):
        given.append(observations[:, : plain.width_of_goals(one)])
    updated(one, batches[0])
    updated(other, batches[0])
    if hasattr(one, "actor"):
        actors = [made.actor(32) for made in (one, one, other)]
        for actor in actors:
            actor.begin(torch.ones(32, dtype=torch.bool))
        for _ in range(3):
            first, *same = (actor.act(*given) for actor in actors)
            assert all(are_equal(first, actions) for actions in same)
    repeats = are_equal(plain.act(one, observations), plain.act(one, observations))
    assert repeats == ("acting" not in vars(one))
    assert not differing(updated(one, batches[1]), updated(other, batches[1]))


def are_equal(one, other):
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@pytest.mark.parametrize("form", [form for form in FORMS.values() if hasattr(form, "explore")])
def test_exploring_is_random_within_the_bounds_and_changes_no_state(form, make, scaling, tmp_path):
    made = make(form)
    drawn = torch.randn(512, 3, generator=make_generator(0, 0))
    observations = drawn * scaling.obs_std + scaling.obs_mean
    before = state(made, tmp_path)
    one, same, other = (made.explore(observations, make_generator(seed, 0)) for seed in (0, 0, 1))
    if one.ndim == 3:  # chunks, whose first actions are compared with those of `act`
        one, same, other = (actions[:, 0] for actions in (one, same, other))
    assert state(made, tmp_path) == before
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert (one >= scaling.action_low - 1e-5).all()
    assert (one <= scaling.action_high + 1e-5).all()
    apart = scaling.actions_to_unit(one) - scaling.actions_to_unit(made.act(observations))
    assert torch.median(apart, 0).values.abs().max() < 0.1
    assert (scaling.actions_to_unit(one).abs() > 0.999).float().mean() < 0.6
    assert 0.05 < apart.std() < 1.1


# --- settings

OF_ONE_FORM = [
    ("RLPD", "smallest_of", 11),
    ("DT", "heads", 3),
    ("CDT", "heads", 3),
    ("QRL", "representation", 12),
    ("QRL", "value_goals", (0.5, 0.0, 0.0)),
]


def outside(kind):
    """Return values that are outside of the range of a type."""
    match kind:
        case inspect.UnionType(types=types):
            return [value for one in types for value in outside(one)]
        case inspect.TupleType(item_types=items):
            return [(value, *[0.0] * (len(items) - 1)) for value in outside(items[0])]
        case inspect.VarTupleType(item_type=item):
            return [() if kind.min_length else "x,", *((value,) for value in outside(item))]
        case inspect.Metadata():
            return [math.nan, math.inf]
        case inspect.LiteralType():
            return ["largest"]
        case inspect.IntType() | inspect.FloatType():
            limits = [(kind.gt, 0), (kind.lt, 0), (kind.ge, -1), (kind.le, 1)]
            beyond = [limit + step for limit, step in limits if limit is not None]
            assert beyond, "a number has a range, or is AnyNumber"
            return beyond + [math.nan, math.inf] * isinstance(kind, inspect.FloatType)
    return []


def test_settings_out_of_range_or_of_another_type_are_refused_by_their_names(form):
    for field in msgspec.structs.fields(form.CONFIG):
        name, kind = field.name, inspect.type_info(field.type)
        for value in outside(kind):
            with pytest.raises(ValueError, match=rf"^{algorithm_name(form)}: {name} must .*, found "):
                make_config(form, {name: value})
        for other in ({"a": 1}, "x,", [[]]):
            if "StrType" not in str(kind) or not isinstance(other, str):  # a text that any path may be
                with pytest.raises(ValueError, match=rf"^{algorithm_name(form)}: {name} must"):
                    make_config(form, {name: other})


@pytest.mark.parametrize(("name", "setting", "value"), OF_ONE_FORM)
def test_what_one_form_alone_refuses(name, setting, value):
    with pytest.raises(ValueError, match=rf"{setting}.*{re.escape(str(value))}"):
        make_config(FORMS[name], {setting: value})


def test_defaults_are_those_that_were_compared_with_published_ones(form):
    """`recorded/defaults.json` has the defaults of each form since it came; a new one may be missing there."""
    expected = json.loads((plain.RECORDED / "defaults.json").read_text("utf-8")).get(form.__name__)
    assert expected in (None, msgspec.json.decode(msgspec.json.encode(form.CONFIG())))
