"""Server of prompts with a prefix cache: it computes only the part of a prompt that follows the prefix hit.

client = Client(HybridConfig(block=machine.config.page_tokens), sink_frames=4, window=32, system=system)
server = PromptServer(machine)
answer = server.answer(client.request(frames, question), count=32)
"""

from __future__ import annotations

from compiler.runtime import Machine, Session
from golden.hybrid import PromptRequest


class PromptServer:
    """Executes requests of a client (`golden.hybrid.Client`) in order, each in a session of its own.

    A session begins with the pages of the session before that hold the prefix hit (`Session.fork`), and the session
    before is closed. So the cache is the previous prompt, and its block is a page. The machine needs two streams.

    Attributes
    ----------
    session : of the last request; None before the first one ; prompt : token IDs of the last request

    Source: "To Infinity and Beyond", phase 4.
    """

    def __init__(self, machine: Machine):
        if machine.limits.streams < 2:
            raise ValueError(f"streams must be at least 2 for a server of prompts, got {machine.limits.streams}")
        self.machine = machine
        self.session: Session | None = None
        self.prompt: tuple[int, ...] = ()

    def answer(self, request: PromptRequest, count: int = 32) -> list[int]:
        """Token IDs of the answer to a request, at most `count`.

        At least the last token of a prompt is computed, because its hidden state gives the answer. Raises ValueError,
        and keeps the session of the last request, if the hit is not a common prefix of both prompts.
        """
        size = self.machine.config.page_tokens
        hit = min(request.hit, (len(request.prompt) - 1) // size * size)
        if request.prompt[:hit] != self.prompt[:hit]:
            raise ValueError(f"hit must be a common prefix with the last prompt, got {request.hit} tokens")
        session = self.session.fork(hit) if self.session and hit else self.machine.session()
        if self.session:
            self.session.close()
        self.session, self.prompt = session, request.prompt
        return list(session.ask(request.prompt[hit:], count=count))
