"""A trainer in the manner of the multi-GPU tutorials: env://, a snapshot by rank 0, gone on with after an elastic restart."""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="gloo")


def load_train_objs():
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(64, 20), torch.randn(64, 1))
    model = torch.nn.Linear(20, 1)
    return data, model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, snapshot_path, fail_at):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.loader, self.optimizer = loader, optimizer
        self.save_every, self.snapshot_path, self.fail_at = save_every, snapshot_path, fail_at
        self.epochs_run = 0
        if snapshot_path.exists():
            snapshot = torch.load(snapshot_path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            optimizer.load_state_dict(snapshot["OPTIMIZER"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"[rank {self.global_rank}] resumes at epoch {self.epochs_run}")
        self.model = DDP(model)

    def _run_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        total = 0.0
        for source, targets in self.loader:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        print(f"[rank {self.global_rank}] epoch {epoch} | steps {len(self.loader)} | loss {total:.6f}")

    def _save_snapshot(self, epoch):
        state = {
            "MODEL_STATE": self.model.module.state_dict(),
            "OPTIMIZER": self.optimizer.state_dict(),
            "EPOCHS_RUN": epoch + 1,
        }
        torch.save(state, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            if epoch == self.fail_at and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.global_rank == 1:
                raise RuntimeError("a GPU fell off the bus")
            self._run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)
            barrier()


def main(args):
    ddp_setup()
    data, model, optimizer = load_train_objs()
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=False, sampler=DistributedSampler(data))
    trainer = Trainer(model, loader, optimizer, args.save_every, args.snapshot, args.fail_at)
    trainer.train(args.total_epochs)
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    print(f"[rank {trainer.global_rank}] weights {hashlib.sha256(weights).hexdigest()[:16]}")
    time.sleep(0.5)  # see conftest.py
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--snapshot", default=Path("snapshot.pt"), type=Path)
    parser.add_argument("--fail-at", default=-1, type=int)
    main(parser.parse_args())
