"""Hugging Face transformers' ``Trainer`` on lockstep: the same weights and logs on any number of
processes.

::

    from lockstep.integrations.transformers import Trainer, TrainingArguments

    args = TrainingArguments("out", shards=8, per_device_train_batch_size=4)
    Trainer(model, args, train_dataset=data).train()

"Device" in the names of arguments means *shard*: the global batch is ``per_device_train_batch_size
* shards * gradient_accumulation_steps`` on any number of processes, as if each shard had a device.
"""

from lockstep.integrations.transformers._versions import check_version

check_version()

from lockstep.integrations.transformers._arguments import (  # noqa: E402 -- other versions may lack what these import
    OnLockstep,
    Seq2SeqTrainingArguments,
    TrainingArguments,
)
from lockstep.integrations.transformers._trainer import Seq2SeqTrainer, Trainer  # noqa: E402

__all__ = ["OnLockstep", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"]
