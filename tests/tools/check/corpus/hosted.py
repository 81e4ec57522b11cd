"""Libraries that drive training on lockstep call some of a script's methods once per shard."""

import lightning as L
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from lockstep.integrations.accelerate import Accelerator
from lockstep.integrations.lightning import LockstepStrategy
from lockstep.integrations.transformers import Trainer, TrainingArguments


def by_trainer(data):
    class Counting(Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.total, self.losses, self.weight = 0.0, [], 0.5

        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(**inputs)
            loss = self.weight * outputs.loss + outputs.logits.pow(2).mean()
            self.total += loss.item()  # LS104
            self.losses.append(loss.item())  # LS103
            return (loss, outputs) if return_outputs else loss

    trainer = Counting(AutoModelForCausalLM.from_pretrained("tiny"), TrainingArguments("out", shards=4), train_dataset=data)
    trainer.train()
    print(trainer.total, trainer.losses)
    print(trainer.evaluate())


def by_lightning(data):
    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.seen = nn.Linear(2, 2), 0

        def training_step(self, batch, number):
            x, y = batch
            self.seen += len(x)  # LS104
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss, on_epoch=True)
            return loss

        def on_train_epoch_end(self):
            self.print(self.seen)

    net = Net()
    trainer = L.Trainer(strategy=LockstepStrategy(shards=4), max_epochs=2)
    trainer.fit(net, DataLoader(data, 4))
    print(net.seen)


def by_accelerate(model, optimizer, data):
    accelerator = Accelerator(shards=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4))
    overall = 0
    for _epoch in accelerator.epochs(2):
        total_loss, right, losses = 0, 0, []
        for step, (x, y) in enumerate(loader):
            outputs = model(x)
            loss = nn.functional.cross_entropy(outputs, y)
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            overall += 1
            right += (outputs.argmax(1) == y).sum().item()
            losses.append(loss.item())
            if step % 10 == 0:
                accelerator.print(loss.item(), overall)
        accelerator.log({"loss": total_loss.item(), "right": right, "mean": sum(losses)})


by_trainer([])
by_lightning([])
by_accelerate(None, None, [])
