"""What Postgres itself refuses: illegal moves, edits of history, rows that were never decided.

The ORM's protections end at `QuerySet.update()` and raw SQL (measured with django-fsm-2); these
do not (invariant I7). A role that owns the tables can still switch triggers off; docs/running.md
shows how to run the application under one that does not.
"""

from __future__ import annotations

import pgtrigger

from effects.states import LEGAL, START_STATES, STATES_WITHOUT_OPEN_QUESTIONS


def no_delete() -> pgtrigger.Trigger:
    """Rows are never deleted."""
    return pgtrigger.Protect(name="no_delete", operation=pgtrigger.Delete)


def no_truncate() -> pgtrigger.Trigger:
    """The table is never emptied."""
    return pgtrigger.Trigger(
        name="no_truncate",
        level=pgtrigger.Statement,
        when=pgtrigger.Before,
        operation=pgtrigger.Truncate,
        func="RAISE EXCEPTION 'history is append-only: % is never truncated', TG_TABLE_NAME;",
    )


def append_only() -> list[pgtrigger.Trigger]:
    """Rows are written once and never changed, deleted or truncated."""
    return [
        pgtrigger.Protect(name="no_update", operation=pgtrigger.Update),
        no_delete(),
        no_truncate(),
    ]


def frozen(*fields: str) -> pgtrigger.Trigger:
    """These columns keep the value they were inserted with."""
    return pgtrigger.ReadOnly(name="frozen_fields", fields=list(fields))


def written_once(*columns: str) -> pgtrigger.Trigger:
    """These columns may go from empty (NULL or '') to a value, and then stay."""
    changed = " OR ".join(
        f"(OLD.{c}::text IS DISTINCT FROM NEW.{c}::text AND COALESCE(OLD.{c}::text, '') <> '')"
        for c in columns
    )
    return pgtrigger.Trigger(
        name="written_once",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func=f"""
            IF {changed} THEN
                RAISE EXCEPTION 'history is append-only: a closed row of % stays as it is',
                    TG_TABLE_NAME;
            END IF;
            RETURN NEW;
        """,
    )


def legal_moves() -> pgtrigger.Trigger:
    """The state changes only along the one table of `effects.states`."""
    moves = sorted((source.value, target.value) for source, target in LEGAL)
    return pgtrigger.FSM(name="legal_moves", field="state", transitions=moves)


def start_states() -> pgtrigger.Trigger:
    """A row is born in a state that a decision gives, with nothing spent and nothing sent."""
    allowed = ", ".join(f"'{state.value}'" for state in START_STATES)
    return pgtrigger.Trigger(
        name="start_states",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        func=f"""
            IF NEW.state NOT IN ({allowed}) OR NEW.generation <> 1 OR NEW.provider_ref <> ''
                OR NEW.attempt_count <> 0 OR NEW.key_first_used_at IS NOT NULL THEN
                RAISE EXCEPTION 'a row of % cannot begin in state %', TG_TABLE_NAME, NEW.state;
            END IF;
            RETURN NEW;
        """,
    )


def only_while_submitting(*, action_table: str) -> pgtrigger.Trigger:
    """An attempt is born in the claim of its action, unsent, and in no other way."""
    return pgtrigger.Trigger(
        name="only_while_submitting",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert,
        # Made of our own constants when the migration is written, never of anybody's input.
        func=f"""
            IF NEW.resolution <> '' OR NEW.closed_at IS NOT NULL OR NOT EXISTS (
                SELECT 1 FROM {action_table} a
                WHERE a.id = NEW.action_id AND a.state = 'SUBMITTING'
            ) THEN
                RAISE EXCEPTION 'an attempt begins open, in the claim of its action';
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )


def no_open_questions(*, attempt_table: str) -> pgtrigger.Trigger:
    """No state that says "nothing is on the wire" is entered while an attempt is unresolved."""
    guarded = ", ".join(f"'{state.value}'" for state in STATES_WITHOUT_OPEN_QUESTIONS)
    # Made of our own constants when the migration is written, never of anybody's input.
    return pgtrigger.Trigger(
        name="no_open_questions",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func=f"""
            IF NEW.state IS DISTINCT FROM OLD.state AND NEW.state IN ({guarded}) AND EXISTS (
                SELECT 1 FROM {attempt_table} a WHERE a.action_id = NEW.id AND a.resolution = ''
            ) THEN
                RAISE EXCEPTION 'action % has an unresolved attempt and cannot become %',
                    NEW.action_id, NEW.state;
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )


def new_key_by_people(*, attempt_table: str, act_table: str) -> pgtrigger.Trigger:
    """The key generation grows by one, by two people, and only where nothing is on the wire.

    One person is enough where an answer that is stored under the old key refused it.
    """
    # Made of our own constants when the migration is written, never of anybody's input.
    return pgtrigger.Trigger(
        name="new_key_by_people",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func=f"""
            IF NEW.generation = OLD.generation THEN
                RETURN NEW;
            END IF;
            IF NEW.generation <> OLD.generation + 1 OR OLD.state <> 'UNKNOWN'
                OR NEW.state <> 'AWAITING_APPROVAL' OR NEW.key_first_used_at IS NOT NULL
                OR EXISTS (
                    SELECT 1 FROM {attempt_table} a
                    WHERE a.action_id = NEW.id AND (a.closed_at IS NULL OR a.resolution = '')
                ) THEN
                RAISE EXCEPTION 'action % cannot have a new key now', NEW.action_id;
            END IF;
            IF NOT EXISTS (
                SELECT 1 FROM {act_table} c
                WHERE c.action_id = NEW.action_id AND c.generation = OLD.generation
                    AND c.act = 'new_key' AND (c.place = 2 OR EXISTS (
                        SELECT 1 FROM {attempt_table} a
                        WHERE a.action_id = NEW.id AND a.generation = OLD.generation
                            AND a.outcome LIKE 'refused%'
                    ))
            ) THEN
                RAISE EXCEPTION 'a new key for action % needs two people', NEW.action_id;
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )


def resolved_by_two_people(*, action_table: str, act_table: str) -> pgtrigger.Trigger:
    """No attempt is called resolved by people of whom there were not two."""
    # Made of our own constants when the migration is written, never of anybody's input.
    return pgtrigger.Trigger(
        name="resolved_by_two_people",
        when=pgtrigger.Before,
        operation=pgtrigger.Update,
        func=f"""
            IF NEW.resolved_by LIKE 'people:%' AND NEW.resolved_by <> OLD.resolved_by
                AND NOT EXISTS (
                    SELECT 1 FROM {act_table} c JOIN {action_table} a ON a.action_id = c.action_id
                    WHERE a.id = NEW.action_id AND c.generation = a.generation AND c.place = 2
                        AND c.act IN ('new_key', 'give_up')
                ) THEN
                RAISE EXCEPTION 'attempt % was not resolved by two people', NEW.idempotency_key;
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )


def enough_people(*, approval_table: str, begins_by: str = "policy") -> pgtrigger.Trigger:
    """People authorize in a round, and enough of them; what a round asks for is never lowered.

    An action begins by policy, or by the remedy that people gave it (`begins_by`). A decision
    becomes that of people by the move in which they take it, and in no other way: only they take
    it from AWAITING_APPROVAL to AUTHORIZED, and what they decided stays theirs. Who must approve
    is the policy's until people are asked; from then on it can only grow.
    """
    # Made of our own constants when the migration is written, never of anybody's input.
    return pgtrigger.Trigger(
        name="enough_people",
        when=pgtrigger.Before,
        operation=pgtrigger.Insert | pgtrigger.Update,
        func=f"""
            IF TG_OP = 'INSERT' THEN
                IF NEW.decided_by <> '{begins_by}' OR NEW.approval_round <> 1 THEN
                    RAISE EXCEPTION 'a row of % begins by {begins_by}, in its first round',
                        TG_TABLE_NAME;
                END IF;
                RETURN NEW;
            END IF;
            IF NEW.approval_round < OLD.approval_round THEN
                RAISE EXCEPTION 'rounds of approval of % never go back', NEW.action_id;
            END IF;
            IF NEW.decided_by <> OLD.decided_by AND NOT (
                NEW.decided_by = 'person' AND OLD.state = 'AWAITING_APPROVAL'
                AND NEW.state IN ('AUTHORIZED', 'REJECTED')
            ) THEN
                RAISE EXCEPTION 'a decision about % becomes that of people when they take it',
                    NEW.action_id;
            END IF;
            IF (NEW.review_people < OLD.review_people OR NEW.review_tier < OLD.review_tier)
                AND (OLD.state = 'AWAITING_APPROVAL' OR OLD.decided_by = 'person') THEN
                RAISE EXCEPTION 'who must approve % is never lowered', NEW.action_id;
            END IF;
            IF NEW.state <> 'AUTHORIZED' THEN
                RETURN NEW;
            END IF;
            IF OLD.state = 'AWAITING_APPROVAL' AND NEW.decided_by <> 'person' THEN
                RAISE EXCEPTION '% awaits people, and only they authorize it', NEW.action_id;
            END IF;
            IF NEW.decided_by = 'person'
                AND (OLD.state = 'AWAITING_APPROVAL' OR NEW.approval_round <> OLD.approval_round)
                AND greatest(1, NEW.review_people) > (
                    SELECT count(DISTINCT y.decided_by_id) FROM {approval_table} y
                    WHERE y.action_id = NEW.action_id AND y.round = NEW.approval_round
                        AND y.approved AND y.tier >= NEW.review_tier
                ) THEN
                RAISE EXCEPTION '% needs the approval of % people of tier %',
                    NEW.action_id, NEW.review_people, NEW.review_tier;
            END IF;
            RETURN NEW;
        """,  # noqa: S608
    )
