"""Losses that people train with, as functions of logits and targets, for `leakgauge.Task.of_step`: each one number."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def bce(logits: Tensor, labels: Tensor, positive: Tensor | None = None) -> Float[Tensor, ""]:
    """Binary cross-entropy of logits with several labels, one logit, or a mask of one class. `logits` have the shape of
    `labels`, or an axis of length one more, for one logit; `positive` weighs each output's positive examples
    (``pos_weight``)."""
    return F.binary_cross_entropy_with_logits(_of_values(logits, labels), labels.to(logits), pos_weight=positive)


def squares(outputs: Tensor, values: Tensor) -> Float[Tensor, ""]:
    """Mean squared error; outputs [n, 1] stand for [n]."""
    return F.mse_loss(_of_values(outputs, values), values.to(outputs))


def huber(outputs: Tensor, values: Tensor, delta: float = 1.0) -> Float[Tensor, ""]:
    """Huber's loss: squares up to `delta` from the value, a line beyond. Far from its value an error says no value."""
    return F.huber_loss(_of_values(outputs, values), values.to(outputs), delta=delta)


def _of_values(outputs: Tensor, values: Tensor) -> Tensor:
    return outputs.squeeze(1) if outputs.ndim == values.ndim + 1 else outputs


def places(logits: Float[Tensor, "n classes *places"], mask: Tensor) -> Float[Tensor, ""]:
    """Cross-entropy of every place (pixel, voxel, token), mean over all; places of −100 do not count."""
    return F.cross_entropy(logits, mask)


def dice(
    logits: Float[Tensor, "n classes *places"], mask: Tensor, smoothing: float = 1e-5, background: bool = True
) -> Float[Tensor, ""]:
    """One less Dice's overlap 2·Σ p·y / (Σ p + Σ y), mean over examples and classes (Milletari et al., 2016). `mask`:
    whole numbers [n, places], or shares [n, classes, places]; `background`: whether class 0 counts."""
    single = logits.shape[1] == 1
    shares = logits.sigmoid() if single else logits.softmax(1)
    axes = tuple(range(2, logits.ndim))
    if mask.is_floating_point() and mask.ndim == logits.ndim:
        truth = mask.to(shares)
    elif single:
        truth = mask[:, None].to(shares)
    else:
        classes = torch.arange(logits.shape[1], device=mask.device).view(1, -1, *[1] * len(axes))
        truth = (mask[:, None] == classes).to(shares)  # as one_hot, which does not run under vmap
    first = 0 if background or single else 1
    overlap = (2 * (shares * truth).sum(axes) + smoothing) / ((shares + truth).sum(axes) + smoothing)
    return 1 - overlap[:, first:].mean()


def dice_ce(logits: Float[Tensor, "n classes *places"], mask: Tensor, weight: float = 1.0) -> Float[Tensor, ""]:
    """Dice and cross-entropy (binary with one output) together, as segmentation networks are trained; `weight` is the
    cross-entropy's."""
    entropy = bce(logits, mask) if logits.shape[1] == 1 else places(logits, mask)
    return dice(logits, mask) + weight * entropy


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Float[Tensor, ""]:
    """Focal loss (Lin et al., 2017, eq. (4)), of classes where labels are whole numbers [n] or of places [n, places],
    and of several labels where they have the logits' shape: cross-entropy times (1 − p)^γ, p of what is true."""
    if labels.shape == logits.shape:
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    else:
        each = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-each).exp()) ** gamma * each).mean()


def cox(risk: Tensor, event: Float[Tensor, "n 2"]) -> Float[Tensor, ""]:
    """Cox's partial likelihood, negative log, mean over the events (Cox, 1972; Breslow's ties). `risk`: log risks [n]
    or [n, 1]; `event`: time, and whether the event came (1) or the observation ended (0)."""
    risk = risk.flatten()
    at_risk = event[None, :, 0] >= event[:, None, 0]
    total = torch.logsumexp(risk.expand(len(risk), -1).masked_fill(~at_risk, -torch.inf), 1)
    came = event[:, 1].to(risk)
    return -((risk - total) * came).sum() / came.sum().clamp_min(1)


def next_token(logits: Float[Tensor, "n length vocabulary"], tokens: Tensor) -> Float[Tensor, ""]:
    """Cross-entropy of each token from those before it, as causal language models are trained; −100 does not count."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
