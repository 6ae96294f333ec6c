"""A guest of the shared supervisor offers all that a run uses."""

from __future__ import annotations

from harness.falsify.bench import Guest
from harness.runtime.supervised import Servers


def test_a_guest_has_every_method_of_the_real_thing():
    offered = {name for name in vars(Servers) if not name.startswith("_")}
    assert offered <= {name for name in vars(Guest) if not name.startswith("_")}
