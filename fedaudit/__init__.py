"""FedAudit: privacy audits of federated prompt learning and federated LoRA on vision-language models."""

__version__ = "0.1.0"
