from dpaudit.runs.engines.engine import Engine as Engine
from dpaudit.runs.engines.engine import Work as Work
from dpaudit.runs.engines.local import LocalEngine as LocalEngine
from dpaudit.runs.engines.local import cores as cores
from dpaudit.runs.engines.ray import RayEngine as RayEngine
