"""Measures what a federated-learning update reveals about the client's data.

``import leakgauge as lg`` gives the nouns that both sides of the wire share (`lg.Task`, `lg.Update`, …), the short ways
in (`lg.audit`, `lg.attack`, `lg.inspect`, `lg.frontier`), and the packages of parts (`lg.clients`, `lg.defenses`,
`lg.attacks`, `lg.models`, …).
"""

# `python -m leakgauge` puts the working directory first on the path, where a file called typing.py may lie beside a
# received model. No import but of modules that Python has loaded by now may stand above this.
import os
import sys

_RUN = sys.argv[:1] == ["-m"] and "leakgauge" in sys.orig_argv[-len(sys.argv)] and not sys.flags.safe_path
if _RUN and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

import lazy_loader

__version__ = "0.1.0"

# Looked up on first use, so that `leakgauge --help` does not wait for torch; `__init__.pyi` says where.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
