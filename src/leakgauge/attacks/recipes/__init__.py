"""Papers as assemblies of parts."""

from leakgauge.attacks.recipes.any_loss import AnyLossRead as AnyLossRead
from leakgauge.attacks.recipes.auto import Auto as Auto
from leakgauge.attacks.recipes.features import Features as Features
from leakgauge.attacks.recipes.order_search import OrderSearch as OrderSearch
from leakgauge.attacks.recipes.papers import ci_net as ci_net
from leakgauge.attacks.recipes.papers import dlg as dlg
from leakgauge.attacks.recipes.papers import idlg as idlg
from leakgauge.attacks.recipes.papers import inverting_gradients as inverting_gradients
from leakgauge.attacks.recipes.papers import qian_hansen as qian_hansen
from leakgauge.attacks.recipes.papers import rog as rog
from leakgauge.attacks.recipes.row_space import RowSpace as RowSpace
from leakgauge.attacks.recipes.row_space import SpanFit as SpanFit
from leakgauge.attacks.recipes.row_space import SpanRead as SpanRead
