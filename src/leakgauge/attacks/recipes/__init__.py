"""Papers as assemblies of parts."""

from leakgauge.attacks.recipes.any_loss import AnyLossRead
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.attacks.recipes.features import Features
from leakgauge.attacks.recipes.order_search import OrderSearch
from leakgauge.attacks.recipes.papers import ci_net, dlg, gias, idlg, inverting_gradients, qian_hansen, rog
from leakgauge.attacks.recipes.row_space import RowSpace, SpanFit, SpanRead

__all__ = [
    "AnyLossRead",
    "Auto",
    "Features",
    "OrderSearch",
    "RowSpace",
    "SpanFit",
    "SpanRead",
    "ci_net",
    "dlg",
    "gias",
    "idlg",
    "inverting_gradients",
    "qian_hansen",
    "rog",
]
