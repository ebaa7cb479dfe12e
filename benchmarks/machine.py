"""The machine, the versions and the commit that figures were measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

PACKAGES = ("dpaudit", "numpy", "scipy", "numcodecs", "torch", "transformers", "ray", "invink")


def describe() -> dict[str, object]:
    """Return processor, cores, memory, accelerator and versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "accelerator": _accelerator(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **_versions()},
    }


def made() -> str:
    """Return today's date and the commit."""
    return f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}"


def _processor() -> str:
    """Return the model, and the widest vectors it computes with."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or "unknown"
    widest = next(
        (
            label
            for flag, label in (("avx512f", "AVX-512"), ("avx2", "AVX2"))
            if f" {flag} " in text
        ),
        None,
    )
    return f"{name} ({widest})" if widest else name


def _accelerator() -> str:
    try:
        import torch
    except ImportError:
        return "none"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """Return the commit, and whether files differ from it; "unknown" outside a repository."""
    root = Path(__file__).parent
    commands = (
        ["git", "rev-parse", "--short=12", "HEAD"],
        # what is published does not count: one topic after another changes it
        [
            "git",
            "status",
            "--porcelain",
            "--untracked-files=no",
            ":/",
            ":/!benchmarks/results",
            ":/!docs",
        ],
    )
    try:
        commit, changes = (
            subprocess.run(  # noqa: S603
                command, cwd=root, capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changes else commit
