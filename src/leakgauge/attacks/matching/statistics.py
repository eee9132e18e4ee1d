"""BatchNorm statistics that travelled with the update: the batch's means and variances, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.clients import FedAvg, FedSGD
from leakgauge.observation import Observation
from leakgauge.task import Mode, Task
from leakgauge.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the client's batch had as mean and standard deviation in every channel of every BatchNorm.

    A client in train mode moves its running statistics r to (1 − m)·r + m·s with the momentum m and the statistics s of
    its batch; who is sent them (`Knowledge.buffers`) solves for s. Kin of the prior of Yin et al., 2021, which compares
    with the running statistics instead, because it knows no others.

    Attributes:
        task: the client's.
        seen: mean and standard deviation by module.
    """

    task: Task
    seen: dict[str, tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]]

    @staticmethod
    def of(observation: Observation, task: Task) -> Statistics | None:
        """`None` where none travelled or one local step did not make them. `task` gives precision and device."""
        knowledge, client = observation.knowledge, observation.knowledge.local_training or FedSGD()
        after, before, count = knowledge.buffers, task.buffers, observation.examples
        if after is None or task.mode is not Mode.TRAIN or count is None:
            return None
        if not isinstance(client, FedSGD | FedAvg) or client.steps(count) != 1:
            return None
        like = next(iter(task.parameters.values()))
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for name, module in task.module.named_modules():
            prefix = f"{name}." if name else ""
            names = (f"{prefix}running_mean", f"{prefix}running_var")
            if not isinstance(module, nn.modules.batchnorm._BatchNorm) or any(n not in after for n in names):
                continue
            momentum = module.momentum
            if momentum is None:
                momentum = 1 / (float(before[f"{prefix}num_batches_tracked"]) + 1)
            mean, variance = (
                (after[n].to(like).double() - (1 - momentum) * before[n].double()) / momentum for n in names
            )
            seen[name] = (mean.to(like), variance.clamp_min(0).sqrt().to(like))
        return Statistics(task, seen) if seen else None

    def distance(self, raw: Float[Tensor, "n *shape"], buffers: Tensors) -> Float[Tensor, ""]:
        """Mean over the layers of the squared distance to what was seen, in shares of its square; differentiable."""
        inputs: dict[str, Tensor] = {}
        handles = []
        for name in self.seen:

            def keep(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                inputs[name] = given[0]

            handles.append(self.task.module.get_submodule(name).register_forward_pre_hook(keep))
        try:
            self.task.logits(self.task.parameters, {**self.task.buffers, **buffers}, raw)
        finally:
            for handle in handles:
                handle.remove()
        terms = []
        for name, (mean, spread) in self.seen.items():
            x = inputs[name].transpose(0, 1).flatten(1)
            if x.shape[1] < 2:
                continue
            gap = (x.mean(1) - mean).square().sum() + ((x.var(1) + 1e-12).sqrt() - spread).square().sum()
            terms.append(gap / (mean.square().sum() + spread.square().sum()).clamp_min(1e-12))
        return torch.stack(terms).mean() if terms else raw.new_zeros(())
