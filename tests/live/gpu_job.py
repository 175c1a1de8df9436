"""One all-reduce on each rank's GPU, sent to the nodes as part of the project: is NCCL there, and is the sum right?"""

import sys

import horovod.torch as hvd
import torch

hvd.init()
torch.cuda.set_device(hvd.local_rank())
total = hvd.allreduce(torch.ones(1 << 20, device="cuda"), op=hvd.Sum)
facts = (torch.cuda.get_device_name(), torch.__version__, torch.cuda.nccl.version(), hvd.nccl_built())
sys.stdout.write(f"rank {hvd.rank()}: {facts}, sums {total.min().item()} to {total.max().item()}\n")
sys.exit(0 if torch.all(total == hvd.size()) else 1)
