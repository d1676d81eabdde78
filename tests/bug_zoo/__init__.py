"""Broken kernels, each with one bug that a GPU would not report, and their repaired twins.

`ZOO` are the broken ones, `SOUND` the others; each is listed where it is written.
"""

from . import copies, meetings, memory, races
from .case import SOUND, ZOO, Case, empty, vector

__all__ = ["SOUND", "ZOO", "Case", "copies", "empty", "meetings", "memory", "races", "vector"]
