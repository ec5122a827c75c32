# SPDX-License-Identifier: Apache-2.0
# poisectl run torchrun --nproc_per_node 4 train.py
import poise, torch
from torch.utils.data import DataLoader, DistributedSampler

torch.distributed.init_process_group("gloo")
data = [torch.randn(1 + i * i % 397, 64) for i in range(1024)]  # samples of 1 to 397 rows
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), collate_fn=list)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in poise.balance(loader, lengths=len):
    loss = sum((model(sample) - sample.sum(1, True)).square().mean() for sample in batch) / len(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.6f}")
