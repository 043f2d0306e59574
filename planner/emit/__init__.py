"""From a plan to its launch folder. Called, it is ``emit`` of planner.api."""

import sys

from planner import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
