"""FedAudit: privacy audits of federated prompt learning and federated LoRA on vision-language models."""

from fedaudit.api import Audit, audit
from fedaudit.errors import InputError

__all__ = ["Audit", "InputError", "audit"]
__version__ = "0.1.0"
