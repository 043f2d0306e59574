"""Everything that chooses: candidates, bounds, the ILP, and why. Called, it is ``search`` of planner.api."""

import sys

from planner import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
