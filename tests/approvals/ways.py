"""How approvals are tried: a policy with tiers, its editors, and orders that move on."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User

from approvals.decide import Approved, ApprovedByOne, Refused, Why, approve
from approvals.models import Approval
from effects.clock import database_now
from effects.states import State
from policies.models import PolicyDraft, PolicyVersion
from policies.parameters import Tier
from refunds.models import Order, RefundAction, RefundEvent
from refunds.orders import OrderFacts, mirror_order
from tests import builders

# Up to 100.00 one person of tier 1, up to 300.00 one of tier 2, above two of tier 3.
TIERS = (
    Tier(tier=1, up_to_base_minor=10_000),
    Tier(tier=2, up_to_base_minor=30_000),
    Tier(tier=3, up_to_base_minor=None, people=2),
)


def tiered_policy(**parameters: Any) -> None:
    """Nothing by policy alone, and the tiers above."""
    builders.policy(**({"ceiling_minor": {}, "tiers": TIERS} | parameters))


def awaiting(amount_minor: int = 40_000, **fields: Any) -> RefundAction:
    """A refund that awaits people, of an order of 500.00 unless one is given."""
    order = fields.pop("order", None) or builders.order(captured_minor=50_000)
    action = builders.action(order, amount_minor=amount_minor, **fields)
    if action.state != State.AWAITING_APPROVAL:
        raise AssertionError(f"{action.state} and not awaiting")
    return action


def say_yes(
    action: RefundAction, user: User, *, note: str = "looked at it", **seen: Any
) -> Approved | ApprovedByOne | Refused:
    """What comes of one person's yes to what is shown now."""
    return approve(
        action_id=action.action_id, user=user, note=note, seen=builders.seen(action, **seen)
    )


def refused(result: object, why: Why) -> str:
    """The sentence of a refusal, which must be for this reason."""
    if not isinstance(result, Refused) or result.why is not why:
        raise AssertionError(result)
    return result.sentence


def waits_for(result: object) -> int:
    """How many more people a yes that was taken waits for."""
    if not isinstance(result, ApprovedByOne):
        raise AssertionError(result)
    return result.waiting_for


def move_on(order: Order, *, captured_minor: int) -> None:
    """The merchant states another captured amount: a new version of the order."""
    now = Order.objects.get(pk=order.pk)
    mirror_order(
        facts=OrderFacts(
            order_id=now.order_id,
            currency=now.currency,
            captured_minor=captured_minor,
            provider=now.provider,
            payment_ref=now.payment_ref,
            source_version=now.source_version + 1,
        ),
        actor="test",
    )


def edited_policy(*, editor: User, publisher: User | None = None) -> PolicyVersion:
    """The policy in force once more, as a draft that one person edited and another published."""
    last = PolicyVersion.objects.order_by("-number")[0]
    publisher = publisher or builders.person()
    now = database_now()
    with builders.past_the_triggers():
        draft = PolicyDraft.objects.create(
            name="the same again", state="published", parameters=last.parameters,
            parameters_hash=last.parameters_hash, based_on=last, created_by=editor,
            created_at=now, edited_by=editor, edited_at=now, editors=[editor.pk], closed_at=now,
        )  # fmt: skip
        return PolicyVersion.objects.create(
            number=last.number + 1, parameters=last.parameters,
            parameters_hash=last.parameters_hash, published_by=publisher.get_username(),
            published_at=now, editor=editor, publisher=publisher, draft=draft,
        )  # fmt: skip


def take_away_permissions(user: User) -> None:
    """All that this person was granted, directly or by groups."""
    user.user_permissions.clear()
    user.groups.clear()


def group_of(codename: str) -> Group:
    """A group that grants one permission."""
    group = Group.objects.create(name=builders.next_id("group"))
    group.permissions.add(Permission.objects.get(codename=codename))
    return group


def history(action: RefundAction) -> list[str]:
    """The kinds of the action's events, oldest first."""
    return list(
        RefundEvent.objects.filter(action=action).order_by("pk").values_list("kind", flat=True)
    )


def rounds(action: RefundAction) -> list[tuple[int, str]]:
    """Who said what in which round: (round, username), oldest first."""
    rows = Approval.objects.filter(action_id=action.action_id).order_by("number")
    return list(rows.values_list("round", "decided_by__username"))
