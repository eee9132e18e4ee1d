"""Capturing rounds of NVFlare on the client. Needs the extra ``nvflare``; runs with NVFlare 2.9.

One filter, listed in both chains of a training task: what comes in are the weights received, what goes out is the
reply. In a job's client configuration that is::

    "task_data_filters": [{"tasks": ["train"], "filters": [{"path": "leakgauge.capture.nvflare.CaptureFilter",
                           "args": {"folder": "/captures"}}]}],
    "task_result_filters": [the same]
"""

from collections.abc import Mapping
from typing import Any

import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from torch import Tensor

from leakgauge.capture import Recorder, unbroken
from leakgauge.guard import Refused, SendingGuard
from leakgauge.resolve import resolve_defense
from leakgauge.update import UpdateKind

__all__ = ["CaptureFilter", "GuardFilter"]

RECEIVED = "leakgauge.received"  # property of a task's context: the weights that came in

KINDS = {DataKind.WEIGHTS: None, DataKind.WEIGHT_DIFF: UpdateKind.DELTA}


class CaptureFilter(DXOFilter):  # type: ignore[misc]
    """Writes each round that passes, and changes nothing.

    As the first of the result filters it sees the raw update, as the last one what goes over the wire; give each a
    `side` where both are listed. A round's examples are not kept: `leakgauge captured … --data` names them. Captures go
    to `folder`, an absolute path. `examples`: how many this client trains on, for the header; NVFlare's replies do not
    say."""

    def __init__(self, folder: str, side: str = "", examples: int | None = None) -> None:
        super().__init__(list(KINDS), None)
        self.folder, self.side, self.examples = folder, side, examples

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        with unbroken("a round of NVFlare"):
            if (before := _received(dxo, fl_ctx)) is None:
                return
            round_ = shareable.get_header(AppConstants.CURRENT_ROUND, dxo.get_meta_prop(MetaKey.CURRENT_ROUND))
            steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
            Recorder(folder=self.folder, sends=KINDS[dxo.data_kind]).keep(
                before,
                _state(dxo.data),
                round_="unknown" if round_ is None else str(round_),
                node=str(fl_ctx.get_identity_name() or "unknown"),
                side=self.side,
                count=self.examples,
                facts={} if steps is None else {"reply.steps": str(steps)},
            )


class GuardFilter(DXOFilter):  # type: ignore[misc]
    """Sends no update on which the stated defence does not show: the last of the result filters, and among the task
    filters. NVFlare then reports the client's error to the server in place of the update. `defense` is as under
    ``defenses`` in a plan, e.g. ``{"client-dp": {"norm": 1.0, "noise_multiplier": 1.0}}``; of what may be spent see
    `leakgauge.guard.SendingGuard`."""

    def __init__(
        self,
        defense: Any,
        ledger: str | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        statistics: bool = False,
    ) -> None:
        super().__init__(list(KINDS), None)
        stated = resolve_defense(defense, "defense").value
        self.guards = {
            kind: SendingGuard(stated, sends=sends, statistics=statistics, ledger=ledger, epsilon=epsilon, delta=delta)
            for kind, sends in KINDS.items()
        }

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        before = _received(dxo, fl_ctx)
        if before is not None and (found := self.guards[dxo.data_kind].refuse(before, _state(dxo.data))):
            raise Refused(f"this update is not sent: {'; '.join(found)}")


def _received(dxo: DXO, fl_ctx: FLContext) -> dict[str, Tensor] | None:
    """The weights that came in, for a reply; `None` where these are what passes, which are kept for it."""
    if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
        fl_ctx.set_prop(RECEIVED, _state(dxo.data), private=True, sticky=False)
        return None
    if (before := fl_ctx.get_prop(RECEIVED)) is None:
        raise Refused("no weights came in: list the filter in task_data_filters as well")
    return before  # type: ignore[no-any-return]


def _state(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies: a client may train in the arrays that it was given."""
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in data.items()}
