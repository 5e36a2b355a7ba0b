"""Django's settings. What differs between installations comes from config/environment.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django_stubs_ext
from django.templatetags.static import static
from psycopg.conninfo import conninfo_to_dict

from config.environment import environment_or_exit
from config.logs import logging_settings
from config.schedule import beat_schedule

# Django classes that are generic in their stubs (Paginator[Any]) accept the brackets at run time
# too. https://github.com/typeddjango/django-stubs
django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
ENVIRONMENT = environment_or_exit()

# ---- General -------------------------------------------------------------------------------------
# https://docs.djangoproject.com/en/5.2/ref/settings/#debug
# Never on: its error pages show settings and local variables, and it keeps every query in memory.
DEBUG = False
SECRET_KEY = ENVIRONMENT.secret_key.get_secret_value()
ALLOWED_HOSTS = list(ENVIRONMENT.allowed_hosts)
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
LANGUAGE_CODE = "en-us"
# https://docs.djangoproject.com/en/5.2/ref/settings/#time-zone
# Django's default is America/Chicago, and the process's TZ follows it.
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# ---- Rooms ---------------------------------------------------------------------------------------
# https://docs.djangoproject.com/en/5.2/ref/settings/#installed-apps
# unfold stands before admin: it replaces the admin's templates.
INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_fsm",
    "pgtrigger",
    # Its API page then loads its scripts from here; without this, from somebody's CDN.
    "ninja",
    "django_structlog",
    "effects",
    "providers",
    "policies",
    "approvals",
    "refunds",
    "reconciliation",
    "agents",
    "console",
    "config",
]

# ---- Requests ------------------------------------------------------------------------------------
# https://docs.djangoproject.com/en/5.2/ref/middleware/#middleware-ordering
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    # Before anything looks at the host name.
    "config.health.answer_health_first",
    # Before anything reads, sets or begins something.
    "agents.elsewhere.refuse_agents_elsewhere",
    # Before Django looks at the host name: it would answer with a page, and log it as an error.
    "agents.hosts.refuse_other_hosts",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    # Before anything reads a form.
    "console.form_encoding.refuse_other_encodings",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # Last, so that the user is known; it binds request_id to every line of the log.
    "django_structlog.middlewares.RequestMiddleware",
]
# https://docs.djangoproject.com/en/5.2/ref/settings/#append-slash
# For people who type /admin. Addresses of programs never match this: config/urls.py ends them with
# a problem, since a redirect would turn a POST into a GET.
APPEND_SLASH = True
# https://docs.djangoproject.com/en/5.2/ref/settings/#data-upload-max-memory-size
# Largest real body is an order with its lines, a few kB.
DATA_UPLOAD_MAX_MEMORY_SIZE = 256 * 1024

# ---- Security ------------------------------------------------------------------------------------
# https://docs.djangoproject.com/en/5.2/topics/security/
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not ENVIRONMENT.development
SESSION_COOKIE_HTTPONLY = True
CSRF_TRUSTED_ORIGINS = list(ENVIRONMENT.csrf_trusted_origins)
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
# https://docs.djangoproject.com/en/5.2/ref/settings/#auth-password-validators
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# ---- Database ------------------------------------------------------------------------------------
# https://docs.djangoproject.com/en/5.2/ref/databases/#postgresql-notes
# No ATOMIC_REQUESTS: no provider call may happen inside a transaction. No pool: Celery closes
# connections around every task, and a pool with them.
_server: dict[str, Any] = conninfo_to_dict(ENVIRONMENT.database_url.get_secret_value())
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _server.pop("dbname", ""),
        "USER": _server.pop("user", ""),
        "PASSWORD": _server.pop("password", ""),
        "HOST": _server.pop("host", ""),
        "PORT": _server.pop("port", ""),
        "CONN_MAX_AGE": ENVIRONMENT.conn_max_age_seconds,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            # Clients of MCP wait 5 s and more: a model should hear that the outcome is not known
            # from this service, and not from a timeout of its framework's.
            "connect_timeout": 4,
            # A lock that is not had in 4 s is a crowd: better an error that the next sweep repeats.
            # A statement of 15 s is a bug. The last one ends a transaction that somebody left open
            # around a slow call.
            "options": "-c lock_timeout=4s -c statement_timeout=15s "
            "-c idle_in_transaction_session_timeout=15s",
            **_server,
        },
    }
}

# ---- The protocol --------------------------------------------------------------------------------
# What each means stands beside its default in config/environment.py. Rooms read them from here.
STRIPE_API_KEY = ENVIRONMENT.stripe_api_key.get_secret_value()
STRIPE_API_KEYS = {
    alias: key.get_secret_value() for alias, key in ENVIRONMENT.stripe_api_keys.items()
}
STRIPE_WEBHOOK_SECRETS = tuple(
    secret.get_secret_value() for secret in ENVIRONMENT.stripe_webhook_secrets
)
STRIPE_API_BASE = ENVIRONMENT.stripe_api_base
INSTANCE = ENVIRONMENT.instance
CASE_OWNER = ENVIRONMENT.case_owner
CASE_ESCALATION_OWNER = ENVIRONMENT.next_in_line
BASE_CURRENCY = ENVIRONMENT.base_currency
DEVELOPMENT = ENVIRONMENT.development
PROVIDER_CONNECT_TIMEOUT_SECONDS = ENVIRONMENT.provider_connect_timeout_seconds
PROVIDER_READ_TIMEOUT_SECONDS = ENVIRONMENT.provider_read_timeout_seconds
PROVIDER_TOTAL_TIMEOUT_SECONDS = ENVIRONMENT.provider_total_timeout_seconds
SUBMIT_LEASE_SECONDS = ENVIRONMENT.submit_lease_seconds
SETTLE_SECONDS = ENVIRONMENT.settle_seconds
KEY_RESEND_SECONDS = ENVIRONMENT.key_resend_seconds
DISPATCH_SWEEP_SECONDS = ENVIRONMENT.dispatch_sweep_seconds
RECONCILE_SWEEP_SECONDS = ENVIRONMENT.reconcile_sweep_seconds
RECONCILE_DELAYS_SECONDS = ENVIRONMENT.reconcile_delays_seconds
RECONCILE_WINDOW_SECONDS = ENVIRONMENT.reconcile_window_seconds
APPROVAL_TTL_SECONDS = ENVIRONMENT.approval_ttl_seconds
PENDING_POLL_SECONDS = ENVIRONMENT.pending_poll_seconds
LOOK_FRESH_SECONDS = ENVIRONMENT.look_fresh_seconds
CASE_DUE_SECONDS = ENVIRONMENT.case_due_seconds
CASE_LOOKS_APART_SECONDS = ENVIRONMENT.case_looks_apart_seconds
REDIS_URL = ENVIRONMENT.redis_url.get_secret_value()
AGENT_REQUESTS_PER_MINUTE = ENVIRONMENT.agent_requests_per_minute
SESSION_REQUESTS_PER_MINUTE = ENVIRONMENT.session_requests_per_minute
CRASH_POINTS_DIR = ENVIRONMENT.crash_points_dir

# ---- Celery --------------------------------------------------------------------------------------
# https://docs.celeryq.dev/en/stable/userguide/configuration.html
# A message is a hint that carries an id; it may be lost, repeated or forged. The row is the queue.
CELERY_BROKER_URL = ENVIRONMENT.broker
# The database is the result.
CELERY_RESULT_BACKEND = None
CELERY_TASK_IGNORE_RESULT = True
# A killed worker's message comes back. The claim absorbs one that comes twice.
CELERY_TASK_ACKS_LATE = True
# Bounded by max_retries (new in 5.7); plain rejection loops without end on Redis, and stays as the
# fallback for when the retry cannot be published.
CELERY_TASK_RETRY_ON_WORKER_LOST = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_ANNOTATIONS = {"*": {"max_retries": 3, "default_retry_delay": 10}}
# A slow provider call must not sit on messages that another process could run.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_SOFT_TIME_LIMIT = ENVIRONMENT.task_soft_time_limit_seconds
CELERY_TASK_TIME_LIMIT = ENVIRONMENT.task_hard_time_limit_seconds
if ENVIRONMENT.broker.startswith(("redis", "unix")):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "visibility_timeout": ENVIRONMENT.broker_visibility_timeout_seconds,
        # kombu sweeps every interval x throttle; its defaults (10 x 10) make any visibility timeout
        # about 100 s.
        "unacked_restore_interval": min(10.0, ENVIRONMENT.broker_visibility_timeout_seconds),
        "unacked_restore_throttle": 1,
        # A half-open connection is noticed.
        "socket_timeout": 10,
        "socket_keepalive": True,
    }
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Without a limit: a broker that is away for an hour must not end the workers.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# Publishing is a hint given after commit: fail fast, the sweep finds the row.
CELERY_TASK_PUBLISH_RETRY_POLICY = {
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.2,
}
# Never cut a provider call short because the broker went away.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
# A second SIGTERM still lets a provider call finish; container grace is 90 s.
CELERY_WORKER_SOFT_SHUTDOWN_TIMEOUT = 60
CELERY_WORKER_MAX_TASKS_PER_CHILD = 500
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_TASK_DEFAULT_QUEUE = "slow"
CELERY_TASK_ROUTES = {
    "refunds.*": {"queue": "dispatch"},
    "reconciliation.*": {"queue": "slow"},
    "notifications.*": {"queue": "slow"},
}
# No results, so nothing to clean up: beat would schedule that by itself.
CELERY_RESULT_EXPIRES = None
CELERY_BEAT_SCHEDULE = beat_schedule(ENVIRONMENT)
# In memory: the schedule is static, so a file would only be one more thing that can be stale or
# locked.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False

# ---- Static files --------------------------------------------------------------------------------
# https://whitenoise.readthedocs.io/en/stable/django.html
# The staff site stays blank without them (Alpine hides pages until it has loaded).
# Production collects them into the image under names that change with their content; development
# serves them from where the packages keep them, so that nothing collected can be stale.
STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = ENVIRONMENT.development
STATIC_ROOT = None if ENVIRONMENT.development else BASE_DIR / "staticfiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if ENVIRONMENT.development
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# ---- Templates -----------------------------------------------------------------------------------
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# ---- Staff site ----------------------------------------------------------------------------------
# https://unfoldadmin.com/docs/configuration/settings/
UNFOLD = {
    "SITE_TITLE": "Refund Once",
    "SITE_HEADER": "Refund Once",
    "SITE_SUBHEADER": ENVIRONMENT.instance,
    "SHOW_HISTORY": False,
    "DASHBOARD_CALLBACK": "console.landing.landing",
    "STYLES": [lambda request: static("console/console.css")],
}
LOGIN_URL = "admin:login"

# ---- Logs ----------------------------------------------------------------------------------------
# https://django-structlog.readthedocs.io/
LOGGING = logging_settings(ENVIRONMENT.log_level)
LOGGING_CONFIG = "logging.config.dictConfig"
DJANGO_STRUCTLOG_CELERY_ENABLED = True
# The address and user agent of a caller are personal data; the user's name is bound where it
# matters, as actor.
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False
DJANGO_STRUCTLOG_USER_ID_FIELD = None
