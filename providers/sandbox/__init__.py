"""A stateful fake Stripe over real HTTP, with its own ledger and every fault a refund can meet.

See README.md in this folder. It imports nothing but the standard library.
"""

from .faults import FAULTS
from .handle import DEFAULT_API_KEY, Sandbox, SandboxClient
from .settings import Settings

__all__ = ["DEFAULT_API_KEY", "FAULTS", "Sandbox", "SandboxClient", "Settings"]
