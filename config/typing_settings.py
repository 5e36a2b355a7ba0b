"""The settings as mypy's Django plugin reads them: no environment needed, no server reached."""

import os

from config.development import OFFLINE

os.environ.update(OFFLINE)

from config.settings import *  # noqa: F403  # the environment must be there first
