"""position -> row id, and which positions are whose: the order of an epoch, as pure functions.

Comes in: a number of rows, a seed, an epoch, the size of the world. Goes out: int64 arrays of positions and row ids.
What always holds: each epoch has each row once, or by its weight; equal arguments give equal numbers on every machine
and in every version; every rank makes the same number of steps; nothing but buckets takes memory that grows with rows.
"""

from sds.plan.bijection import Bijection, Order
from sds.plan.blocks import BlockPermutation
from sds.plan.partition import Lanes, Steps, lanes, steps
from sds.plan.permutation import Permutation
from sds.plan.plan import Plan

__all__ = ["Permutation", "Plan", "steps", "lanes", "Bijection", "Order", "BlockPermutation", "Steps", "Lanes"]
