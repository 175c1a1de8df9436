"""Fits y = 3 x with Accelerate, on all processes that `accelerate launch` has started, and saves on one of them.

run.command, with run.launcher: each and one process a node:

    accelerate launch --multi_gpu --num_machines $HVDCLOUD_NODES --machine_rank $HVDCLOUD_NODE_RANK
        --num_processes $HVDCLOUD_NODES --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT
        --mixed_precision no --dynamo_backend no accelerate_train.py

--multi_gpu has Accelerate start processes that find each other, on machines without GPUs too.
"""

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

folder = Path(os.environ.get("HVDCLOUD_CHECKPOINT_DIR", "."))
accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(1)
x = torch.rand(256, 1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, 3 * x), batch_size=32))

for epoch in range(1, 6):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    average = accelerator.reduce(loss.detach(), "mean").item()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), folder / "unfinished.tmp")
        (folder / "unfinished.tmp").replace(folder / f"epoch-{epoch}.pt")
        print(f"epoch {epoch}/5: loss {average:.4f}, {accelerator.num_processes} processes", flush=True)
accelerator.end_training()
