"""What the model answers to the client's own examples."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.inspection.drives import VALUES_AT_ONCE, in_eval
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES


@RULES.register("fixed-answer", needs="the task (model, data format, loss) and four or more of the client's examples")
@dataclass(frozen=True)
class FixedAnswer:
    """Whether the model prefers one class for every example.

    Statistic, in nats: range over classes of the mean logit ÷ (1 + range over classes of how the logits vary over
    the examples: the largest standard deviation). All logits equal (a zero-initialised head) scores 0.
    """

    needs: tuple[Part, ...] = (Part.TASK, Part.BATCH)
    meaning: str = (
        "An answer that no example changes makes everyone's residual the same known vector, which unmixes the "
        "gradient. Honest reasons: a saturated or collapsed network."
    )

    def measure(self, received: Received) -> Measurement:
        task, batch = received.task, received.batch
        assert task is not None
        assert batch is not None
        quiet, like = in_eval(task), next(iter(task.parameters.values()))
        size = max(1, VALUES_AT_ONCE * len(batch) // max(1, batch.inputs.numel()))
        with torch.no_grad():
            parts = [quiet.logits(task.parameters, task.buffers, x.to(like))[0] for x in batch.inputs.split(size)]
        logits = torch.cat(parts).double()
        logits = logits[logits.isfinite().all(1)]
        if len(logits) < 4:
            return Measurement(0.0, (), "Not judged.", (Omission("batch", "has fewer than four finite answers"),))
        mean = logits.mean(0)
        preference, spread = float(mean.max() - mean.min()), float(logits.std(0).max())
        evidence = (
            f"Over {len(logits)} examples the mean logits differ by {preference:.3g} nats between classes, and no "
            f"class's logit varies by more than {spread:.3g}."
        )
        return Measurement(preference / (1 + spread), (f"class {int(mean.argmax())}",), evidence)
