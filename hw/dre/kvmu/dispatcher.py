"""Dispatcher: gives each command to the component that executes it and sends the last reply beat."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.command import Fault, Op
from hw.dre.kvmu.headers import Action
from hw.dre.kvmu.sizes import KvmuSizes, Report
from hw.dre.transfer import TransferKind

# component -> operations that it executes
EXECUTORS = {
    "chain_editor": (Op.APPEND, Op.MOVE),
    "page_editor": (Op.SEAL, Op.HOLD, Op.MIGRATE, Op.FREE, Op.EVICT),
    "page_walker": (Op.SELECT, Op.MARK, Op.FIND, Op.LOOKUP),
    "offloader": (Op.STEP,),
}
CHANGING = (Op.APPEND, Op.MOVE, Op.SEAL, Op.HOLD, Op.FREE, Op.EVICT, Op.MIGRATE)
FETCHING = (Op.SELECT, Op.MARK, Op.FETCH)  # operations during a fetch
COPYING = (Op.MOVE, Op.MIGRATE, Op.STEP, Op.FETCH)  # operations that end with their transfers


class Dispatcher(wiring.Component):
    """Executes one command at a time: checks the state of the KVMU, starts a component, then replies.

    A command is in a register from IDLE on. CHECK refuses it if its operation does not exist, no context is open, or a
    fetch or a step is in progress that it would disturb. All checks that need records of the store are those of the
    components. The state with the name of a component offers it the command until it has a result. Commands with
    transfers then end them (FINISH). OPEN, SYNC and the commit of STEP are actions of `Headers`. ANSWER sends the last
    reply beat as a copy job without a copy.

    A fetch is in progress from the first SELECT or MARK to FETCH. If one of them runs out of space, the further ones
    and FETCH report its cause. A step is in progress from the first change of the open context to STEP.

    Timing: 3 cycles and the reply (2 cycles) besides the component; 1 more to end transfers.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of commands
    chain_editor, page_editor, page_walker, offloader : stream of commands to each component
    chain_editor_result, page_editor_result, page_walker_result, offloader_result : stream of their results
    headers, headers_result : streams of actions of `Headers` and of their causes
    load, loaded : request to `CandidateLoader` to send the candidates, high until `loaded`
    number, is_open : number of the open context, and whether one is open, from `Headers`
    copies : stream of jobs to `CopyGenerator`: end of the transfers, and last beat
    restart : the fetch ends in this cycle ; bank, retain : fields of its first SELECT or MARK
    fetched : head pages of the fetch so far
    tagged : the transfers of the command have a tag ; retained : a page becomes the newest one in this cycle
    active : transfers are in flight ; log_full : the undo log is full
    busy, waiting : a command is in progress, waits for transfers
    completed, op, fault : operation `op` is complete in this cycle, with this cause
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        # a token cannot be moved out of a block of encoded keys
        self.operations = tuple(op for op in Op if op != Op.MOVE or not sizes.layout.is_encoded)
        headers = data.StructLayout({"action": Action, "context": range(sizes.max_contexts)})
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                **{name: Out(stream.Signature(sizes.command)) for name in EXECUTORS},
                **{f"{name}_result": In(stream.Signature(sizes.result)) for name in EXECUTORS},
                "headers": Out(stream.Signature(headers)),
                "headers_result": In(stream.Signature(Fault)),
                "load": Out(1),
                "loaded": In(1),
                "number": In(range(sizes.max_contexts)),
                "is_open": In(1),
                "copies": Out(stream.Signature(sizes.job)),
                "restart": Out(1),
                "bank": Out(1),
                "retain": Out(1),
                "fetched": In(sizes.reply["count"].shape),
                "tagged": In(1),
                "retained": In(1),
                "active": In(1),
                "log_full": In(1),
                "fault": Out(Fault),
                "busy": Out(1),
                "waiting": Out(1),
                "completed": Out(1),
                "op": Out(Op),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        command, result = Signal(self.sizes.command), Signal(self.sizes.result)
        fetching, fetch_fault, uncommitted = Signal(), Signal(Fault), Signal()
        m.d.comb += self.op.eq(command.op)
        with m.If(self.retained):
            m.d.sync += uncommitted.eq(1)
        for name in EXECUTORS:
            m.d.comb += getattr(self, name).payload.eq(command)
        with m.FSM(init="IDLE") as fsm:
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [command.eq(self.i.payload), result.eq(0)]
                with m.If(self.i.valid):
                    m.next = "CHECK"
            self._check(m, command, result, fetching, fetch_fault, uncommitted)
            self._execute(m, command, result)
            self._open(m, command, result)
            self._step(m, command, result)
            self._answer(m, command, result, fetching, fetch_fault, uncommitted)
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
        return m

    def _check(
        self,
        m: Module,
        command: data.View,
        result: data.View,
        fetching: Signal,
        fetch_fault: Signal,
        uncommitted: Signal,
    ) -> None:
        """CHECK: refusals that do not depend on the store; then the component of the command."""
        op = command.op
        selects = (op == Op.SELECT) | (op == Op.MARK)

        def refuse(cause: Fault | Value) -> None:
            m.d.sync += result.fault.eq(cause)
            m.next = "ANSWER"

        with m.State("CHECK"):
            with m.Switch(op):
                for name, ops in EXECUTORS.items():
                    with m.Case(*ops):
                        m.next = name.upper()
                with m.Case(Op.OPEN):
                    m.next = "OPEN"
                    with m.If(self.is_open & (self.number == command.context)):
                        m.next = "ANSWER"
                with m.Case(Op.FETCH):
                    m.next = "FINISH"
                with m.Default():
                    m.next = "FLUSH"
            with m.If(~_is_one_of(op, self.operations)):
                refuse(Fault.OP)
            with m.Elif(self.log_full):
                refuse(Fault.LOG)
            with m.Elif(~self.is_open & (op != Op.OPEN) & (op != Op.SYNC)):
                refuse(Fault.CONTEXT)
            with m.Elif(fetching & ~_is_one_of(op, FETCHING)):
                refuse(Fault.FETCHING)
            with m.Elif((fetch_fault != Fault.NONE) & selects):
                refuse(fetch_fault)
            with m.Elif(uncommitted & (op == Op.OPEN)):
                refuse(Fault.UNCOMMITTED)
            with m.If(selects & ~fetching):
                m.d.sync += [self.retain.eq(command.retain), self.bank.eq(command.bank)]

    def _execute(self, m: Module, command: data.View, result: data.View) -> None:
        """A component executes the command and returns its result."""
        for name, ops in EXECUTORS.items():
            to_component, answer = getattr(self, name), getattr(self, f"{name}_result")
            with m.State(name.upper()):
                m.d.comb += [to_component.valid.eq(1), answer.ready.eq(1)]
                m.d.sync += result.eq(answer.payload)
                with m.If(answer.valid):
                    m.next = "ANSWER"
                    if any(op in COPYING for op in ops):
                        with m.If(_is_one_of(command.op, COPYING) & (answer.payload.fault == Fault.NONE)):
                            m.next = "FINISH"

    def _open(self, m: Module, command: data.View, result: data.View) -> None:
        """OPEN reads the headers, then the candidates are sent."""
        with m.State("OPEN"):
            m.d.comb += [
                self.headers.valid.eq(1),
                self.headers.payload.action.eq(Action.OPEN),
                self.headers.payload.context.eq(command.context),
            ]
            with m.If(self.headers.ready):
                m.next = "OPENING"
        with m.State("OPENING"):
            m.d.comb += self.headers_result.ready.eq(1)
            m.d.sync += result.fault.eq(self.headers_result.payload)
            with m.If(self.headers_result.valid):
                m.next = "LOAD"
                with m.If(self.headers_result.payload != Fault.NONE):
                    m.next = "ANSWER"
        with m.State("LOAD"):
            m.d.comb += self.load.eq(1)
            with m.If(self.loaded):
                m.next = "ANSWER"

    def _step(self, m: Module, command: data.View, result: data.View) -> None:
        """FINISH ends the transfers of the command. SYNC flushes; SYNC and STEP wait for transfers; STEP commits."""
        with m.State("FINISH"):
            m.d.comb += [self.copies.valid.eq(1), self.copies.payload.finish.eq(1)]
            with m.If(self.copies.ready):
                m.next = "ANSWER"
                with m.If(command.op == Op.STEP):
                    m.next = "DRAIN"
        with m.State("FLUSH"):
            m.d.comb += [self.headers.valid.eq(1), self.headers.payload.action.eq(Action.FLUSH)]
            with m.If(self.headers.ready):
                m.next = "FLUSHING"
        with m.State("FLUSHING"):
            m.d.comb += self.headers_result.ready.eq(1)
            with m.If(self.headers_result.valid):
                m.next = "DRAIN"
        with m.State("DRAIN"):
            m.d.comb += self.waiting.eq(self.active)
            with m.If(~self.active):
                m.next = "ANSWER"
                with m.If(command.op == Op.STEP):
                    m.next = "COMMIT"
        with m.State("COMMIT"):
            m.d.comb += [self.headers.valid.eq(1), self.headers.payload.action.eq(Action.COMMIT)]
            with m.If(self.headers.ready):
                m.next = "COMMITTING"
        with m.State("COMMITTING"):
            m.d.comb += self.headers_result.ready.eq(1)
            m.d.sync += result.fault.eq(self.headers_result.payload)
            with m.If(self.headers_result.valid):
                m.next = "ANSWER"

    def _answer(
        self,
        m: Module,
        command: data.View,
        result: data.View,
        fetching: Signal,
        fetch_fault: Signal,
        uncommitted: Signal,
    ) -> None:
        """ANSWER sends the last beat and updates the state of the KVMU."""
        job, op, fault = self.copies.payload, command.op, Signal(Fault)
        is_fetch, good, selects = op == Op.FETCH, Signal(), (op == Op.SELECT) | (op == Op.MARK)
        own_fault = Mux(is_fetch & (result.fault == Fault.NONE), fetch_fault, result.fault)
        reports = good | (is_fetch & fetching)
        m.d.comb += [
            fault.eq(Mux(self.log_full & (result.fault == Fault.NONE), Fault.LOG, own_fault)),
            good.eq(fault == Fault.NONE),
            job.op.eq(op),
            job.fault.eq(fault),
            job.page.eq(Mux(good, result.page, 0)),
            job.slot.eq(Mux(good, result.slot, 0)),
            job.count.eq(Mux(is_fetch, Mux(reports, self.fetched, 0), result.count)),
            job.tagged.eq(reports & self.tagged & _is_one_of(op, COPYING)),
            job.last.eq(1),
            job.report.eq(Report.ONCE),
            job.located.eq(good & result.located),
            job.heads.eq((1 << Mux(good, result.head, 0))[: len(job.heads)]),
            job.target.eq(result.target),
            job.kind.eq(TransferKind.FETCH),
        ]
        with m.State("ANSWER"):
            m.d.comb += self.copies.valid.eq(1)
            with m.If(self.copies.ready):
                m.d.comb += [self.completed.eq(1), self.fault.eq(fault)]
                failed = (fault == Fault.STAGING) | (fault == Fault.NO_PAGE_FRAME)
                with m.If(selects & (good | failed)):
                    m.d.sync += [fetching.eq(1), fetch_fault.eq(fault)]
                with m.If(is_fetch):
                    m.d.comb += self.restart.eq(1)
                    m.d.sync += [fetching.eq(0), fetch_fault.eq(Fault.NONE)]
                with m.If(_is_one_of(op, CHANGING) & good):
                    m.d.sync += uncommitted.eq(1)
                with m.If((op == Op.STEP) & good):
                    m.d.sync += uncommitted.eq(0)
                m.next = "IDLE"


def _is_one_of(op: Value, ops: tuple) -> Value:
    return Cat(op == member for member in ops).any()
