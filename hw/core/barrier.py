"""Barriers between cores: every core waits until all cores of the step have started the same BARRIER command."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.core.isa import MAX_CORES

CORES_BITS = MAX_CORES.bit_length()

BARRIER_PORT = wiring.Signature(
    {
        "valid": Out(1),  # a BARRIER waits; high until `released`, or until the core has stopped
        "cores": Out(CORES_BITS),  # cores of the step: cores 0 to `cores` - 1
        "stopped": Out(1),  # the core has stopped on a fault
        "released": In(1),  # all cores of the step wait; one cycle
        "broken": In(1),  # a core of the step has stopped
    }
)


class Barrier(wiring.Component):
    """Releases the cores that wait at a BARRIER.

    A core is released when all cores of its step wait. All of them are released in the same cycle, if their
    commands have the same number of cores.

    Timing: `released` and `broken` follow by one cycle.

    Parameters
    ----------
    cores : number of cores, 1 to MAX_CORES

    Members
    -------
    ports : one BARRIER_PORT of each core

    Raises
    ------
    ValueError
        When `cores` is not valid.
    """

    def __init__(self, cores: int):
        if not 1 <= cores <= MAX_CORES:
            raise ValueError(f"cores must be 1 to {MAX_CORES}, got {cores}")
        self.cores = cores
        super().__init__({"ports": In(BARRIER_PORT).array(cores)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for k, port in enumerate(self.ports):
            in_step = [Signal(name=f"core{j}_in_step_of_core{k}") for j in range(self.cores)]
            m.d.comb += [member.eq(port.cores > j) for j, member in enumerate(in_step)]
            others = list(zip(in_step, self.ports, strict=True))
            all_wait = Cat(~member | other.valid for member, other in others).all()
            any_stopped = Cat(member & other.stopped for member, other in others).any()
            m.d.sync += [
                # the next BARRIER can follow in the cycle after `released`
                port.released.eq(port.valid & all_wait & ~port.released),
                port.broken.eq(port.valid & any_stopped & ~port.released),
            ]
        return m
