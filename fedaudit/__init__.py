"""FedAudit: privacy audits of federated prompt learning and federated LoRA on vision-language models."""

from fedaudit.api import Audit, audit, dry_run
from fedaudit.errors import InputError

__all__ = ["Audit", "InputError", "audit", "dry_run"]
__version__ = "0.1.0"
