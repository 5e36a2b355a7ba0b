"""What people want done about an action whose outcome is in question: one row per person."""

from __future__ import annotations

from typing import Any, ClassVar

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Length, Trim
from django.db.models.lookups import GreaterThanOrEqual

from effects.models import Case
from effects.people import EXPLANATION_CHARACTERS_MIN
from effects.triggers import append_only


def _a_second_follows_a_first() -> pgtrigger.Trigger:
    """Nobody is the second to say something that no first has said in that round."""
    return pgtrigger.Trigger(
        name="a_second_follows_a_first",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        func="""
            IF NEW.place = 2 AND NOT EXISTS (
                SELECT 1 FROM approvals_caseact first
                WHERE first.action_id = NEW.action_id AND first.generation = NEW.generation
                    AND first.act = NEW.act AND first.subject = NEW.subject
                    AND first.round = NEW.round AND first.place = 1
                    AND first.person_id <> NEW.person_id
            ) THEN
                RAISE EXCEPTION 'nobody else has said this about % yet', NEW.action_id;
            END IF;
            RETURN NEW;
        """,
    )


class CaseAct(models.Model):
    """What one person wants done about an action whose outcome is in question, and why.

    One row per person. An act that needs two people is done when the second row of its round is
    written, and the database lets nobody write both. Rows belong to the key generation that they
    speak of, so that no word about an old key counts for a new one.

    - `subject`: what the act is about beside the action: the provider's refund of a link, else "".
    - `round`, `place`: which time this was asked for, and whether as the first or the second.
    - `seen_version`: how many events the action's history had when the person looked.
    - `typed_amount_minor`: the amount that the person typed, where the act asks for it.
    """

    class Act(models.TextChoices):
        """What can be asked for."""

        LINK = "link", "link an existing refund"
        SEND_AGAIN = "send_again", "send again with the same key"
        NEW_KEY = "new_key", "declare not executed, allow a new key"
        GIVE_UP = "give_up", "give up, another way to pay"
        WITHDRAW = "withdraw", "withdraw"

    class Reason(models.TextChoices):
        """Why, as one of few words that can be counted. The note says the rest."""

        PROVIDER_SHOWS_IT = "provider_shows_it", "the provider's dashboard shows it"
        PROVIDER_SHOWS_NOTHING = "provider_shows_nothing", "the provider's dashboard shows nothing"
        PROVIDER_CONFIRMED = "provider_confirmed", "the provider's support confirmed it"
        CUSTOMER_CONFIRMED = "customer_confirmed", "the customer confirmed it"
        NOT_OWED = "not_owed", "the customer is not owed this any more"
        PROPOSED_WRONGLY = "proposed_wrongly", "it was proposed by mistake"
        OTHER = "other", "other, see the note"

    case = models.ForeignKey(Case, on_delete=models.PROTECT, related_name="acts")
    action_id = models.CharField(max_length=160)
    generation = models.PositiveIntegerField()
    act = models.CharField(max_length=12, choices=Act.choices)
    subject = models.CharField(max_length=80, blank=True, default="")
    round = models.PositiveIntegerField()
    place = models.PositiveSmallIntegerField()
    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    reason = models.CharField(max_length=24, choices=Reason.choices)
    note = models.TextField()
    seen_version = models.PositiveIntegerField()
    typed_amount_minor = models.BigIntegerField(null=True, blank=True)
    at = models.DateTimeField()

    class Meta:
        triggers: ClassVar[list[Any]] = [*append_only(), _a_second_follows_a_first()]
        permissions: ClassVar[list[tuple[str, Any]]] = [
            ("declare_not_executed", "Can declare a request not executed, or give it up")
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                name="case_act_once_per_person",
                fields=["action_id", "generation", "act", "subject", "round", "person"],
            ),
            models.UniqueConstraint(
                name="case_act_one_first_one_second",
                fields=["action_id", "generation", "act", "subject", "round", "place"],
            ),
            models.CheckConstraint(
                name="case_act_by_one_or_two", condition=Q(place__in=[1, 2], round__gte=1)
            ),
            models.CheckConstraint(
                name="case_act_says_why",
                condition=Q(
                    GreaterThanOrEqual(Length(Trim("note")), EXPLANATION_CHARACTERS_MIN),
                    reason__in=[
                        "provider_shows_it",
                        "provider_shows_nothing",
                        "provider_confirmed",
                        "customer_confirmed",
                        "not_owed",
                        "proposed_wrongly",
                        "other",
                    ],
                ),
            ),
            models.CheckConstraint(
                name="case_act_of_a_new_key_is_typed",
                # NULL > 0 is not false, and a CHECK passes what is not false.
                condition=~Q(act="new_key")
                | Q(typed_amount_minor__isnull=False, typed_amount_minor__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.act}: {self.action_id}"
