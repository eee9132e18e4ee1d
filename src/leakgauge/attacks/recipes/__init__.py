"""Papers as assemblies of parts."""

from leakgauge.attacks.recipes.auto import Auto
from leakgauge.attacks.recipes.dlg import dlg, idlg
from leakgauge.attacks.recipes.inverting_gradients import inverting_gradients

__all__ = ["Auto", "dlg", "idlg", "inverting_gradients"]
