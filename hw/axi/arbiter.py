"""Round-robin arbitration."""

from amaranth import Const, Module, Mux, Signal, Value


def round_robin(m: Module, name: str, requests: Value, advance: Value) -> Signal:
    """One-hot grant among `requests`, starting after the last grant; `advance` stores the current grant as the last."""
    count = len(requests)
    last, grant = Signal(count, name=f"{name}_last", init=1), Signal(count, name=f"{name}_grant")
    above = Signal(count, name=f"{name}_above")  # requests above the last grant
    mask = ~(last | (last - 1)[:count])
    m.d.comb += above.eq(requests & mask)
    m.d.comb += grant.eq(Mux(above.any(), above & (~above + 1)[:count], requests & (~requests + 1)[:count]))
    with m.If(advance & requests.any()):
        m.d.sync += last.eq(grant)
    return grant


def select(grant: Value, values: list[Value]) -> Value:
    """The value whose bit of the one-hot `grant` is set; 0 when none is set."""
    total: Value = Const(0)
    for bit, value in zip(grant, values, strict=True):
        total = total | (Value.cast(value) & bit.replicate(len(Value.cast(value))))
    return total
