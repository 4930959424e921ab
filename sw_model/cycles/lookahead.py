"""Lookahead of the KVMU: walks along the chains of the next clusters, with the rules of `hw.dre.kvmu.lookahead`."""

from __future__ import annotations

from golden.kvmu import Op
from sw_model.cycles.columns import Action, StoreCommand
from sw_model.cycles.layout import Bell, Count, Machine
from sw_model.cycles.line_cache import look_up
from sw_model.cycles.scheduler import Wait, add, bell
from sw_model.cycles.store_commands import Act


def look_ahead(k: Machine, c: int) -> Wait:
    """Process: look up the next record of the oldest walk that can continue."""
    while True:
        n = ready_walk(k, c)
        if n < 0:
            yield bell(c, Bell.COUNT + Count.LOOKUPS)
            continue
        yield 1
        while k.executes[c]:
            yield bell(c, Bell.COUNT + Count.LOOKUPS)
        if not is_used(k, c, n):
            yield 1
            continue
        if look_up(k, c, k.act[k.walk_at[c, n], Action.VALUE]):
            yield 2
            k.walk_at[c, n] = following_record(k, k.walk[c, n], k.walk_at[c, n] + 1)
        else:
            k.walk_slot[c, n] = k.looked_up[c]
            k.walk_sleeps[c, n] = 1
            yield 1


def ready_walk(k: Machine, c: int) -> int:
    """The oldest walk that has a record and does not sleep; -1: none."""
    for number in range(k.walks[c]):
        n = (k.walk_first[c] + number) % (k.lines // 2)
        if k.walk_at[c, n] >= 0 and not k.walk_sleeps[c, n]:
            return n
    return -1


def is_used(k: Machine, c: int, n: int) -> int:
    """Whether a walk has a record."""
    if k.walk_at[c, n] < 0:
        return 0
    return 1 if (n - k.walk_first[c]) % (k.lines // 2) < k.walks[c] else 0


def following_record(k: Machine, s: int, a: int) -> int:
    """The first action from `a` on that reads a record of the chain of SELECT `s`; -1: none."""
    end = k.store_command[s, StoreCommand.ACT] + k.store_command[s, StoreCommand.ACTS]
    for at in range(a, end):
        if k.act[at, Action.ACT] == Act.FOLLOW:
            return at
    return -1


def begin_walk(k: Machine, c: int, s: int) -> Wait:
    """Begin the walk of SELECT `s` when one is free."""
    while k.walks[c] >= k.lines // 2:
        yield bell(c, Bell.COUNT + Count.WALKS)
    n = (k.walk_first[c] + k.walks[c]) % (k.lines // 2)
    k.walk[c, n] = s
    k.walk_at[c, n] = following_record(k, s, k.store_command[s, StoreCommand.ACT])
    k.walk_sleeps[c, n] = 0
    k.walks[c] += 1
    add(k, c, Count.LOOKUPS, 1)


def end_walks(k: Machine, c: int, s: int) -> None:
    """The KVMU accepts command `s`: a SELECT ends its walk, FETCH and OPEN end all. Then no line is kept."""
    op = k.store_command[s, StoreCommand.OP]
    if op == Op.FETCH or op == Op.OPEN:
        k.walks[c] = 0
        k.walk_first[c] = 0
    elif k.walks[c] and k.walk[c, k.walk_first[c]] == s:
        k.walk_first[c] = (k.walk_first[c] + 1) % (k.lines // 2)
        k.walks[c] -= 1
    if k.walks[c] == 0:
        for slot in range(k.lines):
            k.ahead[c, slot] = 0
    add(k, c, Count.WALKS, 1)
