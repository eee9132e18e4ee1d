"""Whether a step of a search fits into memory, before it is made."""

from __future__ import annotations

import math
from dataclasses import replace

from leakgauge.attacks.matching.problem import Problem
from leakgauge.compute import Compute, available, gigabytes, needed
from leakgauge.task import Task
from leakgauge.tensors import Tensors

PASSES = 20
"""Tensors of one layer's size that a step holds at most: values, their gradients, and those of both."""


def fitted(problem: Problem, task: Task, examples: int, *, batched: bool, compute: Compute) -> Problem | str:
    """The problem, with restarts in chunks that fit into `Compute.memory`; or why not even one fits.

    A step's memory is found with tensors that have no data (`leakgauge.memory.needed`), which takes as long as one or
    a few steps; it is not asked where a bound, every weight at every place of every example, fits already.
    """
    allowed = available(compute.device) if compute.memory is None else compute.memory
    together = min(problem.restarts, problem.chunk or problem.restarts) if batched else 1
    weights = sum(p.numel() * p.element_size() for p in task.parameters.values())
    first, entries = task.data.shape[0], math.prod(task.data.shape)
    bound = PASSES * weights * max(first, entries // first) * examples * problem.cost
    while bound * together > allowed:
        need = _needed(problem, together)
        if need is None or need <= allowed:
            break
        if together == 1:
            return (
                f"memory: a step of the search takes {gigabytes(need)} and {gigabytes(allowed)} are to be had; "
                "give more (--memory), fewer workers, or fewer examples in a batch"
            )
        # Of what a step takes, the weights' share is not the restarts': half of them may not be half of it.
        together = max(1, together // 2)
    return replace(problem, chunk=together) if together < problem.restarts and batched else problem


def _needed(problem: Problem, restarts: int) -> int | None:
    point: Tensors = {name: value[:restarts] for name, value in problem.start.items()}
    return needed(lambda empty: problem.step({k: empty(v) for k, v in point.items()}))
