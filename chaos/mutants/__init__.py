"""Mutants: the real library with one deliberate mistake each, which other lock libraries have made.

A mutant changes the library inside its worker processes, and nothing else: the round, the faults and the checkers are
those of the campaign. A campaign that does not catch a mutant proves nothing about the unmodified client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.mutants import clients, resources, rules, scripts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def apply(name: str, folder: Path) -> None:
    """Change the library in this process; an empty name leaves it unmodified."""
    if name:
        MUTATIONS[name](folder)


MUTATIONS: dict[str, Callable[[Path], None]] = {
    mutation.__name__.replace("_", "-"): mutation
    for mutation in (
        rules.release_without_token_check,
        scripts.script_release_ignores_token,
        clients.unlock_by_name,
        clients.renew_after_loss,
        rules.recreate_on_renew,
        scripts.script_revives_on_renew,
        scripts.script_renew_changes_nothing,
        clients.child_keeps_the_lease,
        clients.fails_open,
        rules.client_clock,
        clients.ttl_not_restarted_on_resend,
        scripts.script_keeps_the_ttl_on_resend,
        clients.never_renews,
        clients.ttl_counted_from_the_answer,
        clients.loss_not_reported,
        clients.cancel_policy_ignored,
        clients.fence_apart_from_grant,
        rules.fence_kept_on_takeover,
        resources.guard_compares_nothing,
        resources.guard_ignores_reads,
        clients.blind_retry,
        rules.offer_to_a_dead_waiter,
        clients.no_recheck_timer,
        clients.no_wake_up,
        clients.polls_instead_of_waking,
        clients.cancel_without_undo,
        rules.barging,
        scripts.script_serves_last_in_first_out,
        clients.close_leaves_the_keeper,
    )
}
