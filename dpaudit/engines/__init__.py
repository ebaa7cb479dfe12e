"""Where work runs: in this process, on the cores of this machine, or elsewhere. Results come in the tasks' order."""

from dpaudit.engines.engine import Engine, Work
from dpaudit.engines.local import LocalEngine, cores
from dpaudit.engines.ray import RayEngine
