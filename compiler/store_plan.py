"""Sizes of the store of a machine: contexts, pages, page frames, and tokens that stay in device memory."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.memory import page_layout
from compiler.policies import Policy
from compiler.policies.base import MAX_CLUSTER_TOKENS
from golden.store import ContextSizes, StoreSizes, log_entries
from hw.config import Config


@dataclass(frozen=True)
class StorePlan:
    """Sizes of the store for some contexts, each of one layer of one stream.

    contexts   number of contexts
    past       past tokens that a query attends to, at most
    pages, clusters  largest numbers of a context
    page_frames  page frames of all contexts
    resident   tokens of all contexts that stay in device memory
    keeps_all  all pages have a page frame, so that none leaves device memory
    retains    fetched pages stay in device memory; the pages that were selected last leave last
    log_entries  size of the undo log
    """

    config: Config
    contexts: int
    past: int
    pages: int
    clusters: int
    page_frames: int
    resident: int
    keeps_all: bool
    retains: bool
    log_entries: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: keys and values of its tokens for all KV heads."""
        return page_layout(self.config).head_page_bytes * self.config.kv_heads

    @property
    def staged(self) -> int:
        """Head pages in each bank of the staging area; all pages of a context fit, unless fetched pages stay."""
        return 0 if self.keeps_all or self.retains else self.config.kv_heads * self.pages

    @property
    def store(self) -> StoreSizes:
        """Sizes that all contexts share."""
        config = self.config
        return StoreSizes(
            contexts=self.contexts,
            page_frames=self.page_frames,
            page_tokens=config.page_tokens,
            log_entries=self.log_entries,
            **_line_sizes(config),
        )

    @property
    def context(self) -> ContextSizes:
        """Sizes of each context."""
        return ContextSizes(max_clusters=self.clusters, max_pages=self.pages)


def plan_store(
    config: Config,
    policy: Policy,
    contexts: int,
    *,
    tokens: int,
    step: int,
    pages: int = 0,
    resident: int = 0,
    saved: int = 0,
    batch: int = 1,
    step_name: str = "step",
) -> StorePlan:
    """Sizes for sessions of `tokens` tokens in steps of at most `step`.

    `pages`, `resident` : values of `Limits`; 0: as many as the policy needs and the core allows
    `saved` : page frames that the contexts do not need because they share pages
    `batch` : streams that one step can serve
    `step_name` : name of `step` in messages

    Raises ValueError if a size does not fit the core.
    """
    sizes, frames = policy.sizes(config, tokens, step), config.page_frames
    own_pages = pages or sizes.pages
    for name, value, most in (("contexts", contexts, config.max_contexts), ("pages", own_pages, config.max_pages)):
        if value > most:
            raise ValueError(f"{name} must be at most {most} on this core, got {value}")
    keeps_all = not resident and contexts * own_pages - saved <= frames
    if saved and not keeps_all:
        raise ValueError(
            f"pages of sessions that share tokens must be at most page_frames = {frames} of the core, "
            f"got {contexts * own_pages - saved}"
        )
    if policy.table(config).kept_pages is not None:
        _check_released(policy.name, frames, contexts, contexts * own_pages - saved, tokens, resident)
    elif not (keeps_all or pages):
        own_pages = sizes.offloaded_pages
    # every token can have a page of its own, and a step needs page frames before it offloads old pages
    reserve, all_pages = step, contexts * own_pages - saved
    if batch > 1 and not keeps_all:
        # a stream attends to pages that its commit has offloaded while the tokens of the next stream are stored. A
        # frame is used again after all that were free before it, of which there are at least `step`
        all_pages += reserve
    fetch = max(step, own_pages)
    retains = not keeps_all and _retains(
        config, policy, contexts, step=step, fetch=fetch, resident=resident, batch=batch
    )
    if retains:  # fetched pages stay in device memory until the end of the layer
        reserve = fetch
        if policy.prefetch == "next_layer":
            # a layer reads pages that its commit has offloaded while the pages of the next layer are fetched. A frame
            # is used again after all that were free before it, so the next layer must find enough of these
            reserve += own_pages
            all_pages += reserve  # frames of offloaded pages must not be used at once
    most = frames - reserve
    if most < 1 and not keeps_all:
        if reserve > step:
            raise ValueError(f"page_frames must be more than {reserve} for policy {policy.name}, got {frames}")
        raise ValueError(f"{step_name} must be less than page_frames = {frames} of the core, got {step}")
    stay = min(contexts * tokens, all_pages * config.page_tokens) if keeps_all else resident or most
    used_frames = min(all_pages, stay + reserve)
    if used_frames > frames or stay < 1:
        raise ValueError(
            f"resident must be 1 to {most}, which is page_frames = {frames} of the core without a step of {step} "
            f"tokens, got {stay}"
        )
    clusters = min(sizes.clusters, own_pages)
    entries = _log_entries(config, policy, tokens, step, own_pages, used_frames, retains)
    return StorePlan(config, contexts, sizes.past, own_pages, clusters, used_frames, stay, keeps_all, retains, entries)


def _log_entries(config: Config, policy: Policy, tokens: int, step: int, pages: int, frames: int, retains: bool) -> int:
    """Entries of the undo log for the step of a context; Mosaic fetches and moves in different steps of the store.

    Pages leave in exchange for the tokens of the step, of fetched pages and of moves. Each KV head selects a page.
    """
    table, lines = policy.table(config), _line_sizes(config)
    slots = min(pages * config.page_tokens, tokens) if retains else 0
    released = 0 if table.kept_pages is None else pages
    leaving = min(frames, step + slots)
    entries = log_entries(step, leaving + pages * config.kv_heads * retains, freed=released, **lines)
    if table.partitions:
        entries = max(entries, log_entries(step, min(frames, step + tokens), moved=tokens, freed=pages, **lines))
    return entries


def _line_sizes(config: Config) -> dict[str, int]:
    """Bytes of a mean key and of a line of the store."""
    return {"key_bytes": 2 * config.head_dim * config.kv_heads, "line_bytes": max(32, 2 * config.dpe_inputs)}


def _retains(
    config: Config, policy: Policy, contexts: int, *, step: int, fetch: int, resident: int, batch: int
) -> bool:
    """Whether fetched pages stay in device memory; then the pages that were selected last leave last.

    Mosaic needs it, because it moves tokens in device memory. For ReKV it saves transfers, if the frames that all
    contexts select fit into the resident tokens, where the text counts as one frame. Else a page leaves before it is
    needed again, because the contexts follow each other in a circle. The KVMU keeps a page for all KV heads or for
    none, and the other policies select other pages for each head.

    `fetch` : page frames for a fetch of all pages of a context, which must not be those of a context in use
    """
    table, most = policy.table(config), config.page_frames - fetch
    in_order = policy.prefetch == "same_layer" and batch == 1
    selected = contexts * policy.selection().target * step
    return table.partitions > 0 or (table.by_frames and in_order and selected <= (resident or most) <= most)


def _check_released(name: str, frames: int, contexts: int, pages: int, tokens: int, resident: int) -> None:
    """ValueError if a policy that releases pages cannot keep all of its pages in device memory."""
    if resident:
        raise ValueError(f"resident must be 0 for policy {name}, got {resident}")
    if pages > frames:
        raise ValueError(f"pages of policy {name} must be at most page_frames = {frames} of the core, got {pages}")
    most = MAX_CLUSTER_TOKENS
    if contexts == 1 and tokens > most:  # the HCU counts all tokens that joined the cluster
        raise ValueError(f"tokens must be at most {most} for policy {name} with one context, got {tokens}")
