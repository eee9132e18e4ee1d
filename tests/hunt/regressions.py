"""What the hunt once found and what has been mended since: each must hold for good. The newest last."""

from __future__ import annotations

from hunt.relations import Pair
from hunt.scenarios import Scenario
from hunt.zoo import Net

NORMED = Scenario(Net(norm="layer"), examples=2, evaluations=400)

REGRESSIONS: dict[str, Pair] = {
    "a norm behind the first layer": Pair("by hand", NORMED, NORMED, same=False),
    "a search of texts": Pair("recipe", Scenario(Net("texts"), using="matching"), Scenario(Net("texts")), same=False),
}
