"""Functions that fit with another library's trainer. (What they import takes seconds, so only the
ranks do.)"""


def fit_by_transformers(out, by_rank=False):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from lockstep.integrations.transformers import Trainer, TrainingArguments

    class Faulty(Trainer):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * (1 + torch.distributed.get_rank()) if by_rank else loss

    torch.manual_seed(0)
    texts = torch.randint(0, 50, (12, 8))
    data = [{"input_ids": text, "labels": text} for text in texts]
    config = GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments(
        output_dir=str(out),
        shards=2,
        per_device_train_batch_size=2,
        num_train_epochs=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Faulty(model=GPT2LMHeadModel(config), args=args, train_dataset=data)
    trainer.train()
    clocks = ("runtime", "per_second")  # each run's own
    return [{name: value for name, value in row.items() if not name.endswith(clocks)} for row in trainer.state.log_history]


def fit_by_lightning(out):
    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from lockstep.integrations.lightning import LockstepStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, index):
            (inputs,) = batch
            loss = self.layer(inputs).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(48, 4)), 8, shuffle=True)
    trainer = lightning.Trainer(
        strategy=LockstepStrategy(shards=2),
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=str(out),
    )
    trainer.fit(Module(), loader)
    return trainer.global_step
