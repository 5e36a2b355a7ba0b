import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import agents.models


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0002_key_owners"),
        ("refunds", "0008_customer_of_a_remedy"),
    ]

    operations = [
        migrations.CreateModel(
            name="AgentSecret",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sha256", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="AgentSession",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("prefix", models.CharField(max_length=20, unique=True)),
                ("secret_sha256", models.CharField(max_length=64)),
                ("request_id", models.CharField(max_length=64)),
                ("max_amount_minor", models.BigIntegerField(blank=True, null=True)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.AddField(
            model_name="agentsecret",
            name="key",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="secrets",
                to="agents.agentkey",
            ),
        ),
        # Keys of before go on: their one secret becomes the first of several.
        migrations.RunSQL(
            sql="""
                INSERT INTO agents_agentsecret (key_id, sha256, created_at)
                SELECT id, secret_sha256, created_at FROM agents_agentkey;
                SET CONSTRAINTS ALL IMMEDIATE;
            """,
            reverse_sql=migrations.RunSQL.noop,
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="agentkey",
            name="frozen_fields",
        ),
        migrations.RemoveField(
            model_name="agentkey",
            name="secret_sha256",
        ),
        migrations.AddField(
            model_name="agentkey",
            name="scopes",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    choices=[
                        ("orders", "mirror and read orders"),
                        (
                            "refunds",
                            "propose, read and withdraw its own refunds; explain the policy",
                        ),
                        ("sessions", "open and revoke sessions for a model's tools"),
                    ],
                    max_length=20,
                ),
                default=agents.models.every_scope,
                size=None,
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentkey",
            trigger=pgtrigger.compiler.Trigger(
                name="frozen_fields",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    condition='WHEN (OLD."prefix" IS DISTINCT FROM (NEW."prefix") OR OLD."created_at" IS DISTINCT FROM (NEW."created_at"))',
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update rows from % table', TG_TABLE_NAME;",
                    hash="252e81c6dfb4cd43b26926ac6c95df8d7e447d31",
                    operation="UPDATE",
                    pgid="pgtrigger_frozen_fields_6356b",
                    table="agents_agentkey",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.AddField(
            model_name="agentsession",
            name="key",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="sessions",
                to="agents.agentkey",
            ),
        ),
        migrations.AddField(
            model_name="agentsession",
            name="order",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="+", to="refunds.order"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsecret",
            trigger=pgtrigger.compiler.Trigger(
                name="frozen_fields",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    condition='WHEN (OLD."key_id" IS DISTINCT FROM (NEW."key_id") OR OLD."sha256" IS DISTINCT FROM (NEW."sha256") OR OLD."created_at" IS DISTINCT FROM (NEW."created_at"))',
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update rows from % table', TG_TABLE_NAME;",
                    hash="787dce98b4fd04ae3752de86fb9beb31f7045d40",
                    operation="UPDATE",
                    pgid="pgtrigger_frozen_fields_45796",
                    table="agents_agentsecret",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsecret",
            trigger=pgtrigger.compiler.Trigger(
                name="no_delete",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot delete rows from % table', TG_TABLE_NAME;",
                    hash="5234390dc72103960596add56a6f4b6910cb2190",
                    operation="DELETE",
                    pgid="pgtrigger_no_delete_14218",
                    table="agents_agentsecret",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="agentsession",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_amount_minor__isnull", True), ("max_amount_minor__gt", 0), _connector="OR"
                ),
                name="agent_session_max_amount_positive",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsession",
            trigger=pgtrigger.compiler.Trigger(
                name="frozen_fields",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    condition='WHEN (OLD."prefix" IS DISTINCT FROM (NEW."prefix") OR OLD."secret_sha256" IS DISTINCT FROM (NEW."secret_sha256") OR OLD."key_id" IS DISTINCT FROM (NEW."key_id") OR OLD."order_id" IS DISTINCT FROM (NEW."order_id") OR OLD."request_id" IS DISTINCT FROM (NEW."request_id") OR OLD."max_amount_minor" IS DISTINCT FROM (NEW."max_amount_minor") OR OLD."created_at" IS DISTINCT FROM (NEW."created_at") OR OLD."expires_at" IS DISTINCT FROM (NEW."expires_at"))',
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update rows from % table', TG_TABLE_NAME;",
                    hash="7515485e08e998b0b437f93d240765414d0daf5b",
                    operation="UPDATE",
                    pgid="pgtrigger_frozen_fields_097c6",
                    table="agents_agentsession",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsession",
            trigger=pgtrigger.compiler.Trigger(
                name="written_once",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="\n            IF (OLD.revoked_at::text IS DISTINCT FROM NEW.revoked_at::text AND COALESCE(OLD.revoked_at::text, '') <> '') THEN\n                RAISE EXCEPTION 'history is append-only: a closed row of % stays as it is',\n                    TG_TABLE_NAME;\n            END IF;\n            RETURN NEW;\n        ",
                    hash="bb940ab4e6b7ce91fd07a930c3254cc01b442cb9",
                    operation="UPDATE",
                    pgid="pgtrigger_written_once_ee069",
                    table="agents_agentsession",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsession",
            trigger=pgtrigger.compiler.Trigger(
                name="no_delete",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot delete rows from % table', TG_TABLE_NAME;",
                    hash="c833f8d763a946244824ac3200c81d854994dfbc",
                    operation="DELETE",
                    pgid="pgtrigger_no_delete_6cc89",
                    table="agents_agentsession",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="agentsession",
            trigger=pgtrigger.compiler.Trigger(
                name="no_truncate",
                sql=pgtrigger.compiler.UpsertTriggerSql(
                    func="RAISE EXCEPTION 'history is append-only: % is never truncated', TG_TABLE_NAME;",
                    hash="cdfb5f3d550d74b1ca395c305f7b336a2953d3cf",
                    level="STATEMENT",
                    operation="TRUNCATE",
                    pgid="pgtrigger_no_truncate_48097",
                    table="agents_agentsession",
                    when="BEFORE",
                ),
            ),
        ),
    ]
