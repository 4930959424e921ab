"""Independent oracle of the KVMU: dictionaries and an image of every byte of memory instead of tables.

It hears commands, replies and descriptors, performs the descriptors on the image as a DMA engine would, and checks that
no slot has two tokens, that tokens are where the replies say, that a fetch brings every selected byte exactly once,
and that no descriptor leaves its region.
"""

from itertools import islice

import numpy as np

from hw.dre.kvmu.command import Fault, Op
from hw.dre.transfer import Tier

NAMES = {op.value: op.name for op in Op}


class Oracle:
    """`unit` gives sizes only; `settings` are the values of its `cfg_*` ports."""

    def __init__(self, unit, settings):
        self.unit, self.cfg = unit, settings
        size = 1 << unit.address_bits
        self.memory = {tier.value: np.full(size, -1, np.int64) for tier in Tier}
        self.next_token = 0
        self.begin(0)

    def begin(self, layer):
        unit = self.unit
        self.locations = {}  # token -> (page, slot)
        self.cluster = {}  # token -> cluster
        self.page_cluster, self.page_used = {}, {}  # in the order in which the pages were opened
        self.holders = {}  # page -> holders, its cluster among them while it has it
        self.resident = []  # pages, oldest first
        self.marks = set()
        self.sealed = set()  # pages that were held at some time
        rows = {0: unit.page_frames, 1: unit.max_pages, 2: unit.max_pages}
        bases = ("page_frames", "host_pages", "storage_pages")
        self.regions = {t: [self.cfg[f"cfg_{bases[t]}_base"] + layer * n * unit.page_bytes] for t, n in rows.items()}
        for tier, n in rows.items():
            self.regions[tier].append(self.regions[tier][0] + n * unit.page_bytes)
        start = self.cfg["cfg_staging_base"]
        self.staging = (start, start + 2 * self.cfg["cfg_staging_head_pages"] * unit.head_page_bytes)

    # bytes

    def value(self, token, head):
        """Content of the bytes of one head of a token."""
        n = self.unit.slot_bytes
        return (token * self.unit.kv_heads + head) * n + np.arange(n)

    def holds(self, tier, address, token, head):
        got = self.memory[tier][address : address + self.unit.slot_bytes]
        return bool((got == self.value(token, head)).all())

    def transfer(self, group):
        """Check and execute the descriptors of one tag."""
        assert len({d["tag"] for d in group}) == len({d["kind"] for d in group}) == 1
        assert [d["last"] for d in group] == [0] * (len(group) - 1) + [1]
        limit = self.cfg["cfg_max_descriptor_bytes"] or 4096
        for d in group:
            assert 0 < d["bytes"] <= limit
            for side in ("source", "target"):
                start, end, tier = d[side], d[side] + d["bytes"], d[f"{side}_tier"]
                assert start // 4096 == (end - 1) // 4096, "crosses 4 KiB"
                low, high = self.regions[tier]
                inside = low <= start and end <= high
                staged = tier == 0 and self.staging[0] <= start and end <= self.staging[1] and side == "target"
                assert inside or staged, f"{side} outside its region"
            source = self.memory[d["source_tier"]][d["source"] : d["source"] + d["bytes"]]
            self.memory[d["target_tier"]][d["target"] : d["target"] + d["bytes"]] = source

    # commands

    def hear(self, command, replies, group):
        """One command with its replies and its descriptors, in order."""
        last = replies[-1]
        assert [r["last"] for r in replies] == [0] * (len(replies) - 1) + [1]
        assert all(r["op"] == command["op"] for r in replies)
        assert last["tagged"] == bool(group)
        if command["op"] not in NAMES:
            assert last["fault"] == Fault.OP.value and len(replies) == 1 and not group
            return
        name = NAMES[command["op"]]
        if name not in ("STEP", "FETCH", "EVICT"):
            assert len(replies) == 1
        if group and name != "FETCH":
            self.transfer(group)
        getattr(self, f"hear_{name.lower()}")(command, replies, last, group)

    def refused(self, last, causes):
        """True if a command was refused; its cause must be the expected one."""
        expected = [cause.value for holds, cause in causes if holds]
        assert last["fault"] == (expected[0] if expected else 0), (last, expected)
        return bool(expected)

    def hear_begin(self, command, replies, last, group):
        assert last["fault"] == 0
        self.begin(command["layer"])

    def hear_sync(self, command, replies, last, group):
        assert last["fault"] == 0

    def room(self, cluster):
        """The open page of a cluster is not visible here; pages and page frames are counted."""
        pages, frames = len(self.page_cluster), len(self.resident)
        return pages < self.unit.max_pages, frames < self.unit.page_frames

    def hear_append(self, command, replies, last, group):
        assert not group
        if command["cluster"] >= self.unit.max_clusters:
            assert last["fault"] == Fault.CLUSTER.value
            return
        if last["fault"]:
            pages_left, frames_left = self.room(command["cluster"])
            assert last["fault"] == (Fault.NO_PAGE_FRAME if pages_left else Fault.NO_PAGE).value
            assert not (pages_left and frames_left)
            return
        token = self.next_token
        self.next_token += 1
        self.settle(token, command["cluster"], last)
        for head in range(self.unit.kv_heads):  # the LXE writes the new key and value
            address = last["address"] + head * self.unit.head_page_bytes
            self.memory[0][address : address + self.unit.slot_bytes] = self.value(token, head)

    def settle(self, token, cluster, reply):
        page, slot = reply["page"], reply["slot"]
        assert (page, slot) not in set(self.locations.values()), "two tokens in one slot"
        if page in self.page_cluster:
            assert self.page_cluster[page] == cluster and page in self.resident and page not in self.sealed
            assert slot == self.page_used[page] < self.unit.page_tokens
        else:
            assert slot == 0
            self.page_cluster[page], self.page_used[page], self.holders[page] = cluster, 0, 1
            self.resident.append(page)
        self.page_used[page] += 1
        self.locations[token], self.cluster[token] = (page, slot), cluster
        low, high = self.regions[0]
        assert reply["tier"] == 0 and low <= reply["address"] < high

    def chain(self, cluster):
        return [page for page, owner in self.page_cluster.items() if owner == cluster]

    def let_go(self, page):
        self.holders[page] -= 1
        if not self.holders[page]:
            for token in [t for t, (p, _) in self.locations.items() if p == page]:
                del self.locations[token], self.cluster[token]
            self.forget(page)

    def forget(self, page):
        del self.page_cluster[page], self.page_used[page], self.holders[page]
        if page in self.resident:
            self.resident.remove(page)
        self.sealed.discard(page)
        self.marks = {(p, h) for p, h in self.marks if p != page}

    def hear_step(self, command, replies, last, group):
        assert last["fault"] == 0 and last["count"] == len(replies) - 1
        resident_tokens = sum(self.page_used[p] for p in self.resident)
        for reply in replies[:-1]:
            assert resident_tokens > self.cfg["cfg_max_resident_tokens"] and len(self.resident) > 1
            page = self.resident.pop(0)
            assert reply["page"] == page and reply["tier"] != 0 and reply["count"] == self.page_used[page]
            resident_tokens -= self.page_used[page]
            for token, (where, slot) in self.locations.items():
                for head in range(self.unit.kv_heads if where == page else 0):
                    address = reply["address"] + head * self.unit.head_page_bytes + slot * self.unit.slot_bytes
                    assert self.holds(reply["tier"], address, token, head)
        assert resident_tokens <= self.cfg["cfg_max_resident_tokens"] or len(self.resident) == 1

    def hear_select(self, command, replies, last, group):
        if self.refused(last, [(command["cluster"] >= self.unit.max_clusters, Fault.CLUSTER)]):
            return
        pages = self.chain(command["cluster"])
        assert last["count"] == len(pages)
        self.mark(pages, command["heads"])

    def mark(self, pages, heads):
        self.marks |= {(p, h) for p in pages for h in range(self.unit.kv_heads) if heads >> h & 1}

    def hear_mark(self, command, replies, last, group):
        if not self.refused(last, [(command["page"] not in self.page_cluster, Fault.ADDRESS)]):
            assert last["count"] == 1
            self.mark([command["page"]], command["heads"])

    def hear_hold(self, command, replies, last, group):
        page, limit = command["page"], (1 << self.unit.reference_bits) - 1
        known = page in self.page_cluster
        others = known and self.holders[page] - (self.page_cluster[page] is not None)
        if not self.refused(last, [(not known, Fault.ADDRESS), (known and others == limit, Fault.HELD)]):
            self.holders[page] += 1
            self.sealed.add(page)
            assert last["count"] == self.holders[page]

    def hear_evict(self, command, replies, last, group):
        if self.refused(last, [(command["cluster"] >= self.unit.max_clusters, Fault.CLUSTER)]):
            return
        chain = self.chain(command["cluster"])
        gone = [p for n, p in enumerate(chain) if command["index"] <= n < len(chain) - command["page"]]
        assert [(r["page"], r["count"]) for r in replies[:-1]] == [(p, self.page_used[p]) for p in gone]
        assert last["count"] == len(gone)
        for page in gone:
            self.page_cluster[page] = None
            self.let_go(page)

    def hear_fetch(self, command, replies, last, group):
        units = replies[:-1]
        assert last["count"] == len(units)
        wanted = set(self.marks)
        if command["retain"]:
            wanted |= {(p, h) for p, _ in wanted if p not in self.resident for h in range(self.unit.kv_heads)}
        self.marks = set()
        got = [(r["page"], r["head"]) for r in units]
        assert got == sorted(got) and len(set(got)) == len(got)
        if last["fault"]:
            assert last["fault"] == (Fault.NO_PAGE_FRAME if command["retain"] else Fault.STAGING).value
            assert set(got) < wanted
            lacking = len(self.resident) + len({p for p, _ in got} - set(self.resident)) == self.unit.page_frames
            full = sum(r["transit"] for r in units) == self.cfg["cfg_staging_head_pages"]
            assert lacking if command["retain"] else full
        else:
            assert set(got) == wanted
        moved = [r for r in units if r["transit"]]
        assert all((r["page"] in self.resident) == (not r["transit"]) for r in units)
        # every byte of every unit is read once, and only those
        read = [(d["source_tier"], b) for d in group for b in range(d["source"], d["source"] + d["bytes"])]
        written = [b for d in group for b in range(d["target"], d["target"] + d["bytes"])]
        assert len(set(read)) == len(read) == sum(r["count"] for r in moved) * self.unit.slot_bytes
        assert len(set(written)) == len(written)
        if group:
            self.transfer(group)
        for reply in units:
            assert reply["count"] == self.page_used[reply["page"]]
            for token, (page, slot) in self.locations.items():
                if page == reply["page"]:
                    address = reply["address"] + slot * self.unit.slot_bytes
                    assert self.holds(0, address, token, reply["head"])
        if command["retain"]:
            self.resident += dict.fromkeys(r["page"] for r in moved)

    def hear_lookup(self, command, replies, last, group):
        where = (command["page"], command["slot"])
        token = next((t for t, p in self.locations.items() if p == where), None)
        bad = token is None or command["head"] >= self.unit.kv_heads
        if not self.refused(last, [(bad, Fault.ADDRESS)]):
            self.check_location(token, command["head"], last)

    def check_location(self, token, head, reply):
        page, slot = self.locations[token]
        assert (reply["page"], reply["slot"], reply["head"]) == (page, slot, head)
        assert (reply["tier"] == 0) == (page in self.resident)
        assert self.holds(reply["tier"], reply["address"], token, head)

    def hear_find(self, command, replies, last, group):
        """Check what every reply must satisfy; the order of the pages of a cluster is not visible here."""
        if self.refused_find(command, last):
            return
        token = next(t for t, p in self.locations.items() if p == (last["page"], last["slot"]))
        assert self.cluster[token] == command["cluster"]
        self.check_location(token, command["head"], last)

    def refused_find(self, command, last):
        if command["cluster"] >= self.unit.max_clusters:
            assert last["fault"] == Fault.CLUSTER.value
            return True
        pages = self.chain(command["cluster"])
        used = sum(self.page_used[p] for p in pages)
        holes = used != sum(page in pages for page, _ in self.locations.values())
        if command["index"] >= used or command["head"] >= self.unit.kv_heads:
            assert last["fault"] == Fault.ADDRESS.value
        elif last["fault"]:
            assert holes and last["fault"] == Fault.ADDRESS.value
        return last["fault"] != 0

    def hear_move(self, command, replies, last, group):
        where = (command["page"], command["slot"])
        token = next((t for t, p in self.locations.items() if p == where), None)
        causes = [
            (command["cluster"] >= self.unit.max_clusters, Fault.CLUSTER),
            (token is None, Fault.ADDRESS),
            (token is not None and where[0] not in self.resident, Fault.NOT_RESIDENT),
            (token is not None and self.holders[where[0]] > 1 - (self.page_cluster[where[0]] is None), Fault.HELD),
        ]
        if last["fault"] in (Fault.NO_PAGE.value, Fault.NO_PAGE_FRAME.value):
            assert not any(holds for holds, _ in causes)
            pages_left, frames_left = self.room(command["cluster"])
            assert last["fault"] == (Fault.NO_PAGE_FRAME if pages_left else Fault.NO_PAGE).value
            assert not (pages_left and frames_left)
            return
        if self.refused(last, causes):
            return
        self.settle(token, command["cluster"], last)
        for head in range(self.unit.kv_heads):
            assert self.holds(0, last["address"] + head * self.unit.head_page_bytes, token, head)
        if not any(p == where[0] for p, _ in self.locations.values()):
            self.forget(where[0])

    def hear_seal(self, command, replies, last, group):
        self.refused(last, [(command["page"] not in self.page_cluster, Fault.ADDRESS)])

    def hear_free(self, command, replies, last, group):
        page = command["page"]
        if not self.refused(last, [(page not in self.page_cluster, Fault.ADDRESS)]):
            self.let_go(page)
            assert last["count"] == self.holders.get(page, 0)

    def hear_migrate(self, command, replies, last, group):
        known = command["page"] in self.page_cluster and command["tier"] in (1, 2)
        self.refused(last, [(not known, Fault.ADDRESS)])


def replay(unit, settings, commands, replies, descriptors):
    """Replay the results of a simulation through an oracle and return the oracle."""
    oracle, heard, moved = Oracle(unit, settings), iter(replies), iter(descriptors)
    for command in commands:
        answer = []
        while not answer or not answer[-1]["last"]:
            answer.append(next(heard))
        group = []
        while answer[-1]["tagged"] and (not group or not group[-1]["last"]):
            group.append(next(moved))
        oracle.hear(command, answer, group)
    assert not list(islice(heard, 1)) and not list(islice(moved, 1))
    return oracle
