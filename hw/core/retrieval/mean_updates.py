"""Mean updates: which mean keys change in a piece of a step, and by which tokens."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out


class MeanOp(enum.Enum, shape=unsigned(2)):
    """One operation of the update of a mean key."""

    LOAD = 0  # load the mean of `cluster` and multiply it by `count`, its old token count; 0 if the cluster is new
    ADD = 1  # add the key of `token`
    STORE = 2  # divide by `count`, the new token count, and store the mean of `cluster`


# One operation; `token` counts from the first token of the piece, `last` marks the final operation of the piece.
MEAN_UPDATE = data.StructLayout({"op": MeanOp, "cluster": 16, "count": 16, "opened": 1, "token": 8, "last": 1})


def lowest_index(bits: Signal) -> Value:
    """Index of the lowest bit that is set; 0 when none is set."""
    index: Value = 0
    for n in reversed(range(len(bits))):
        index = Mux(bits[n], n, index)
    return index


class MeanUpdates(wiring.Component):
    """Records the cluster assignments of a piece and sends the operations that update the mean keys.

    For each cluster that got tokens in the piece: LOAD, one ADD per token, STORE. The golden model computes the means
    in the same order.

    Timing: one cycle per operation, and one cycle per cluster to find its tokens.

    Parameters
    ----------
    assignment : layout of an assignment of the KV prediction unit
    max_tokens : largest number of tokens of a piece

    Members
    -------
    assignments : stream of assignments, always ready
    tokens : assigned tokens of the piece
    clustered : the last token of the piece is assigned
    clear_clustered : resets `clustered`
    request : starts the operations of the piece
    o : stream of MEAN_UPDATE
    """

    def __init__(self, *, assignment: data.Layout, max_tokens: int):
        self.max_tokens = max_tokens
        super().__init__(
            {
                "assignments": In(stream.Signature(assignment)),
                "tokens": Out(range(max_tokens + 1)),
                "clustered": Out(1),
                "clear_clustered": In(1),
                "request": In(1),
                "o": Out(stream.Signature(MEAN_UPDATE)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entry = data.StructLayout({"cluster": 16, "count": 16, "opened": 1})
        entries = [Signal(entry, name=f"token{n}") for n in range(self.max_tokens)]
        self._record(m, entries)
        self._send(m, entry, entries)
        return m

    def _record(self, m: Module, entries: list[Signal]) -> None:
        """The assignments of the piece; the first one after a `last` starts the next piece."""
        assignment, valid = self.assignments.payload, self.assignments.valid
        first, index = Signal(init=1), Signal(range(self.max_tokens + 1))
        m.d.comb += [self.assignments.ready.eq(1), index.eq(Mux(first, 0, self.tokens))]
        with m.If(valid):
            m.d.sync += [self.tokens.eq(index + 1), first.eq(assignment.last)]
            for n, token in enumerate(entries):
                with m.If(index == n):
                    m.d.sync += [
                        token.cluster.eq(assignment.cluster),
                        token.count.eq(assignment.count),
                        token.opened.eq(assignment.opened),
                    ]
        with m.If(valid & assignment.last):
            m.d.sync += self.clustered.eq(1)
        with m.If(self.clear_clustered):
            m.d.sync += self.clustered.eq(0)

    def _send(self, m: Module, entry: data.Layout, entries: list[Signal]) -> None:
        """Cluster by cluster in the order of their first tokens."""
        pending, members = Signal(self.max_tokens), Signal(self.max_tokens)  # tokens; those of the current cluster
        remaining, current, new_mean = Signal(self.max_tokens), Signal(entry), Signal(entry)
        index, update = Signal(range(self.max_tokens)), self.o.payload
        m.d.comb += current.eq(Array(entries)[index])
        with m.FSM(name="means"):
            with m.State("IDLE"), m.If(self.request):
                m.d.sync += pending.eq(Cat(n < self.tokens for n in range(self.max_tokens)))
                m.next = "PICK"
            with m.State("PICK"):
                same = [token.cluster == current.cluster for token in entries]
                m.d.comb += index.eq(lowest_index(pending))
                m.d.sync += members.eq(pending & Cat(*same))
                m.next = "LOAD"
            with m.State("LOAD"):
                m.d.comb += [
                    index.eq(lowest_index(members)),
                    self.o.valid.eq(1),
                    update.op.eq(MeanOp.LOAD),
                    update.cluster.eq(current.cluster),
                    update.count.eq((current.count - 1)[:16]),
                    update.opened.eq(current.opened),
                ]
                m.d.sync += pending.eq(pending & ~members)
                with m.If(self.o.ready):
                    m.next = "ADD"
            with m.State("ADD"):
                m.d.comb += [
                    remaining.eq(members & (members - 1)[: self.max_tokens]),
                    index.eq(lowest_index(members)),
                    self.o.valid.eq(1),
                    update.op.eq(MeanOp.ADD),
                    update.token.eq(index),
                ]
                m.d.sync += new_mean.eq(current)
                with m.If(self.o.ready):
                    m.d.sync += members.eq(remaining)
                    with m.If(remaining == 0):
                        m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    update.op.eq(MeanOp.STORE),
                    update.cluster.eq(new_mean.cluster),
                    update.count.eq(new_mean.count),
                    update.last.eq(pending == 0),
                ]
                with m.If(self.o.ready):
                    m.next = "PICK"
                    with m.If(pending == 0):
                        m.next = "IDLE"
