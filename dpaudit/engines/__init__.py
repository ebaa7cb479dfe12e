"""The places of work: this process, the cores of this machine, or elsewhere.

Results come in the tasks' order.
"""

from dpaudit.engines.engine import Engine as Engine
from dpaudit.engines.engine import Work as Work
from dpaudit.engines.local import LocalEngine as LocalEngine
from dpaudit.engines.local import cores as cores
from dpaudit.engines.ray import RayEngine as RayEngine
