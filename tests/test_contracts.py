"""The contracts of the design, by number, over the table of cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from cases import COHORTS, DEFENSES, PROTOCOLS, SPEC, DefenseCase, Passed, batch, task
from leakgauge.attacks.matching import Simulator
from leakgauge.clients import FedAvg, Protocol, client_update, raw_update
from leakgauge.defenses import ClipExamples, Compose, Defense, NoDefense, noise, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update


def gap(a: Tensors, b: Tensors) -> float:
    return float((squared_norm(map_tensors(torch.sub, a, b)) / squared_norm(b)).sqrt())


def clips_examples(defense: Defense) -> bool:
    return isinstance(defense, ClipExamples) or (
        isinstance(defense, Compose) and any(map(clips_examples, defense.defenses))
    )


@pytest.mark.parametrize("model", ["smooth", "relu", "normed", "dropped"])
@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.value)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_1_simulation_at_the_truth_is_the_update_for_every_protocol(protocol: Protocol, mode: Mode, model: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        t, b, draws = task(model, mode, dtype), batch(4, dtype), Draws(7)
        update = client_update(t, protocol, b, draws)
        simulated = raw_update(t, protocol, b, draws, NoDefense())[0]
        assert gap(simulated, update.tensors) <= tolerance


def trained(t: Task, protocol: Protocol, b: Batch, draws: Draws, defense: Defense) -> Tensors:
    """The raw update of who runs the stages of the model and of the batch too."""
    t, b = defense.on_task(t), defense.on_batch(b, draws.generator("batch"))
    return raw_update(t, protocol, b, draws, defense)[0]


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
@pytest.mark.parametrize("protocol", PROTOCOLS[:3], ids=repr)
def test_1_simulation_through_the_view_is_the_update_for_every_defense(protocol: Protocol, case: DefenseCase) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        t, b, draws = task("relu", dtype=dtype), batch(4, dtype), Draws(7)
        update = client_update(t, protocol, b, draws, defense=case.defense)
        view = view_of(case.defense, update, None if case.deterministic else draws)
        simulated = view(trained(t, protocol, b, draws, case.defense))
        assert gap(simulated, update.tensors) <= tolerance


@pytest.mark.parametrize(
    "case", [c for c in DEFENSES if not (c.deterministic or c.shown)], ids=lambda c: repr(c.defense)
)
def test_knowing_the_mechanism_is_not_knowing_the_draw(case: DefenseCase) -> None:
    t, b, draws = task("relu"), batch(4), Draws(7)
    update = client_update(t, PROTOCOLS[0], b, draws, defense=case.defense)
    ours = case.defense.without_noise()
    raw = trained(t, PROTOCOLS[0], b, Draws(8), ours)
    assert gap(view_of(case.defense, update, None)(raw), update.tensors) > 1e-3


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
@pytest.mark.parametrize("fill", ["usual", "zero", "nan"])
def test_4_a_defense_keeps_names_shapes_and_dtypes(case: DefenseCase, fill: str) -> None:
    for dtype in (torch.float32, torch.float64):
        t, b = task("relu", dtype=dtype), batch(4, dtype)
        tensors = map_tensors(torch.randn_like, t.parameters)
        tensors |= {"one": torch.randn(1, dtype=dtype), "none": torch.zeros(0, dtype=dtype)}
        if fill == "zero":
            tensors = map_tensors(torch.zeros_like, tensors)
        if fill == "nan":
            tensors["4.weight"][0, 0] = float("nan")
        sent = case.defense.for_batch(t, b).on_update(tensors, torch.Generator().manual_seed(0))
        assert list(sent) == list(tensors)
        assert [(v.shape, v.dtype) for v in sent.values()] == [(v.shape, v.dtype) for v in tensors.values()]
        if fill != "nan":
            assert all(bool(torch.isfinite(v).all()) for v in sent.values())


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
@pytest.mark.parametrize("fill", ["usual", "zero", "nan"])
@pytest.mark.parametrize("examples", [0, 1, 3])
def test_4_a_defense_keeps_names_shapes_and_dtypes_of_every_examples_gradient(
    case: DefenseCase, fill: str, examples: int
) -> None:
    for dtype in (torch.float32, torch.float64):
        t = task("relu", dtype=dtype)
        rows = {k: torch.randn(examples, *p.shape, dtype=dtype) for k, p in t.parameters.items()}
        rows |= {"scalar": torch.randn(examples, dtype=dtype), "none": torch.zeros(examples, 0, dtype=dtype)}
        if fill == "zero":
            rows = map_tensors(torch.zeros_like, rows)
        if fill == "nan" and examples:
            rows["4.weight"][0, 0, 0] = float("nan")
        sent = case.defense.on_example_gradients(rows, torch.Generator().manual_seed(0))
        assert list(sent) == list(rows)
        assert [(v.shape, v.dtype) for v in sent.values()] == [(v.shape, v.dtype) for v in rows.values()]
        if fill != "nan" or case.defense.acts_on_examples:
            assert all(bool(torch.isfinite(v).all()) for v in sent.values())


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
@pytest.mark.parametrize("examples", [0, 1, 3])
def test_4_a_defense_keeps_the_form_of_a_batch(case: DefenseCase, examples: int) -> None:
    for dtype in (torch.float32, torch.float64):
        given = batch(3, dtype).take(torch.arange(examples))
        sent = case.defense.on_batch(given, torch.Generator().manual_seed(0))
        assert sent.inputs.shape == given.inputs.shape
        assert sent.inputs.dtype == dtype
        assert len(sent.labels) == examples
        assert bool(torch.isfinite(sent.inputs).all())


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
def test_3_a_defense_is_deterministic_given_the_generator(case: DefenseCase) -> None:
    t, b = task("relu"), batch(4)
    one, two, other = (client_update(t, PROTOCOLS[0], b, Draws(s), defense=case.defense).tensors for s in (7, 7, 8))
    assert gap(one, two) == 0
    assert (gap(one, other) == 0) is case.deterministic


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
def test_the_view_is_data_free(case: DefenseCase) -> None:
    """The view reads the wire and nothing else: the same defence, which another client has used since, gives it again
    for a copy of the update."""
    t = task("relu")
    update = client_update(t, PROTOCOLS[0], batch(4), Draws(7), defense=case.defense)
    probe = map_tensors(torch.randn_like, case.defense.on_task(t).parameters)
    first = view_of(case.defense, update, None)
    client_update(t, PROTOCOLS[0], batch(2), Draws(9), defense=case.defense)
    second = view_of(case.defense, replace(update, tensors=map_tensors(torch.clone, update.tensors)), None)
    assert gap(first(probe), second(probe)) == 0
    for name in ("support", "noise_scale"):
        a, b = getattr(first, name), getattr(second, name)
        assert (a is None) == (b is None)
        assert a is None or all(bool((a[k] == b[k]).all()) for k in a)


@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.value)
def test_the_task_is_pure_and_the_module_never_changes(mode: Mode) -> None:
    t = task("normed", mode)
    state = {k: v.clone() for k, v in t.module.state_dict().items()}
    buffers = {k: v.clone() for k, v in t.buffers.items()}
    first = t(t.parameters, t.buffers, batch())
    second = t(t.parameters, t.buffers, batch())
    assert float(first[0]) == float(second[0])
    assert all(bool((v == state[k]).all()) for k, v in t.module.state_dict().items())
    assert all(bool((v == buffers[k]).all()) for k, v in t.buffers.items())
    moved = any(bool((first[1][k] != buffers[k]).any()) for k in buffers)
    assert moved is (mode is Mode.TRAIN)


def test_eval_mode_uses_running_statistics_and_not_the_batch() -> None:
    t: Task = task("normed", Mode.EVAL)
    b = batch()
    alone = torch.cat([t.logits(t.parameters, t.buffers, b.inputs[i : i + 1])[0] for i in range(len(b))])
    assert torch.allclose(alone, t.logits(t.parameters, t.buffers, b.inputs)[0])


def test_dropout_draws_from_the_generator_alone() -> None:
    t, b = task("dropped", Mode.TRAIN), batch()
    before = torch.random.get_rng_state()
    losses = [float(t(t.parameters, t.buffers, b, torch.Generator().manual_seed(s))[0]) for s in (1, 1, 2)]
    assert bool((torch.random.get_rng_state() == before).all())
    assert losses[0] == losses[1] != losses[2]
    with pytest.raises(InputError, match="generator"):
        t(t.parameters, t.buffers, b)


@pytest.mark.parametrize("case", [c for c in DEFENSES if not c.deterministic], ids=lambda c: repr(c.defense))
def test_1_a_known_draw_is_repeated_in_another_precision(case: DefenseCase) -> None:
    draws = Draws(7)
    update = client_update(
        task("relu", dtype=torch.float32), PROTOCOLS[0], batch(4, torch.float32), draws, defense=case.defense
    )
    cast = Update({k: v.double() for k, v in update.tensors.items()}, update.header)
    view = view_of(case.defense, cast, draws)
    precise = task("relu", dtype=torch.float32).to(torch.empty((), dtype=torch.float64))
    b = Batch(batch(4, torch.float32).inputs.double(), batch(4).labels)
    raw = trained(precise, PROTOCOLS[0], b, draws, case.defense)
    assert gap(view(raw), cast.tensors) <= 1e-3


def test_composed_noise_is_still_only_noise() -> None:
    defense = Compose((noise(sigma=0.1),))
    update = client_update(task("relu"), PROTOCOLS[0], batch(4), Draws(7), defense=defense)
    assert not view_of(defense, update, None).acts


@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
@pytest.mark.parametrize("protocol", COHORTS, ids=repr)
def test_1_a_cohort_is_simulated_client_by_client_for_every_defense(protocol: Protocol, case: DefenseCase) -> None:
    """By the attacker's own simulator, who knows the draws; deterministic ones without them too."""
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        t, b, draws = task("relu", dtype=dtype), batch(4, dtype), Draws(7)
        try:
            update = client_update(t, protocol, b, draws, defense=case.defense)
        except InputError as error:
            assert "each client's data" in str(error)  # noqa: PT017
            return
        for known in (draws, None) if case.deterministic else (draws,):
            knowledge = Knowledge(
                labels=b.labels, example_count=4, local_training=protocol, defense=case.defense, draws=known
            )
            seen = Observation(case.defense.on_task(t), update, knowledge)
            simulator = Simulator.of(seen, torch.empty((), dtype=dtype), torch.Generator().manual_seed(0))
            assert gap(simulator.exact(b), update.tensors) <= tolerance


@pytest.mark.parametrize("mode", list(Mode), ids=lambda m: m.value)
@pytest.mark.parametrize("case", DEFENSES, ids=lambda c: repr(c.defense))
def test_13_a_network_that_torch_func_refuses_sends_what_it_sends_in_other_words(case: DefenseCase, mode: Mode) -> None:
    """Behind nine defences it was refused; where something is drawn, the second try drew anew."""
    model = "flat" if case.defense.acts_on_examples else "dropped"
    plain, sent = task(model, mode).module, []
    for middle in (plain[2], nn.Sequential(plain[2], Passed())):
        t = Task.of(nn.Sequential(*plain[:2], middle, *plain[3:]), SPEC, mode=mode)
        sent.append(client_update(t, FedAvg(epochs=2, batch_size=3), batch(), Draws(7), defense=case.defense).tensors)
    assert gap(sent[1], sent[0]) <= 1e-12


def test_clipping_examples_with_dropout_is_refused() -> None:
    with pytest.raises(InputError, match="dropout"):
        client_update(task("dropped", Mode.TRAIN), PROTOCOLS[0], batch(4), Draws(7), defense=ClipExamples(norm=1.0))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda b: Batch(b.inputs, b.labels + 99), "batch.labels: go from"),
        (lambda b: Batch(b.inputs, b.labels - 99), "batch.labels: go from -"),
        (lambda b: Batch(b.inputs * float("nan"), b.labels), "batch.inputs: hold NaN or infinity"),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_data_that_no_client_can_train_on_are_refused_in_one_line(
    protocol: Protocol, spoil: Callable[[Batch], Batch], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        client_update(task("smooth"), protocol, spoil(batch(4)), Draws(0))


def test_a_mode_may_be_written_as_in_a_plan() -> None:
    """A string passed for evaluation mode, whatever it said."""
    norm = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5))
    for mode in Mode:
        assert Task.of(norm, SPEC, mode=mode.value).mode is mode
        assert Task.of(norm, SPEC, mode=mode.value).module.training == (mode is Mode.TRAIN)
    with pytest.raises(InputError, match="mode: is 'training'; give eval or train"):
        Task.of(norm, SPEC, mode="training")
