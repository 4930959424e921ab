"""Commands of the golden KVMU that the comparison with the RTL (tests/hw/dre/kvmu) does not reach."""

from golden.kvmu import Command, Fault, Kvmu, KvmuConfig, Op


def test_lookup_of_missing_kv_head_returns_address_fault():
    unit = Kvmu(KvmuConfig(kv_heads=2, head_dim=4, page_tokens=2, max_pages=4, page_frames=4, max_clusters=4))
    unit.execute(Command(Op.BEGIN))
    unit.execute(Command(Op.APPEND, cluster=1))
    for op in (Op.LOOKUP, Op.FIND):
        for head, fault in ((1, Fault.NONE), (2, Fault.ADDRESS)):
            assert unit.execute(Command(op, cluster=1, head=head))[-1].fault == fault
