"""Where work is done: cores of this machine, or a Ray cluster."""

from __future__ import annotations

from dpaudit.runs.engines import Engine as Engine
from dpaudit.runs.engines import LocalEngine, cores

#: More workers than this for each core only wait for each other.
_MOST_PER_CORE = 4


def local_engine(workers: int) -> Engine:
    """Return the engine of so many processes of this machine, as far as it has cores for them."""
    return LocalEngine(min(workers, _MOST_PER_CORE * cores()))


def ray_engine(address: str | None, workers: int | None, *, models: bool) -> Engine:
    """Return the engine of a Ray cluster: the one at the address, or one started here.

    Args:
        address: of the cluster; None for RAY_ADDRESS, or one started here.
        workers: how many work at a time; None for as many as there is room for.
        models: whether each loads a model.

    Raises:
        InputError: Ray is not installed, or nobody answers at the address.
    """
    from dpaudit.runs.engines import RayEngine

    engine = RayEngine(address, workers, models=models)
    engine.require_cluster()
    return engine
