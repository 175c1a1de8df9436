"""Training jobs small enough for a test. Each is a program's text; a project runs it as train.py.

Those that are not about training do without Horovod and torch, which take seconds to load.
"""

from __future__ import annotations

LAUNCHER = "/opt/hvdcloud/venv/lib/python3.11/site-packages/hvdcloud/node/run/launcher/horovodrun.py"
"""horovodrun of runs, in the image: no process imports the framework first, to see what Horovod was built with."""

ALLREDUCE = """
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum).item()
print(f"rank {hvd.rank()} of {hvd.size()} sums {total:.0f}", flush=True)
"""

# What a rank finds around it; of the secret only the hash, since what a job prints is in its log.
ENVIRONMENT = """
import hashlib, json, os, socket

names = ["OMP_NUM_THREADS", "HVDCLOUD_RUN", "HVDCLOUD_CHECKPOINT_DIR", "GREETING"]
print(json.dumps({
    "rank": int(os.environ["HOROVOD_RANK"]), "host": socket.gethostname(), "cwd": os.getcwd(),
    "token": hashlib.sha256(os.environ["TOKEN"].encode()).hexdigest(),
    **{name: os.environ.get(name) for name in names},
}), flush=True)
"""

# Bytes that are no text, and more short lines at once than Open MPI has room to number.
WRITES_BYTES = """
import os

data = bytes(range(256)) * 400 + b"\\n" * 20000 + b"[1]<stdout>:caf\\xe9\\r\\n no end"
while data:
    data = data[os.write(1, data) :]
"""

# Rank 1 ends in the way that its argument says; the others wait for it forever, in Horovod.
ONE_ENDS = """
import os, signal, sys, time
import horovod.torch as hvd
import torch

hvd.init()
how = sys.argv[1]
print(f"rank {hvd.rank()} up", flush=True)
if hvd.rank() == 1:
    if how == "raise":
        raise RuntimeError("rank 1 has had enough")
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
hvd.allreduce(torch.ones(1))
time.sleep(600)
"""

# The same where Horovod has no part in it.
ONE_ENDS_ALONE = """
import os, signal, sys, time

rank, how = os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"], sys.argv[1]
print(f"rank {rank} up", flush=True)
if rank == "1":
    if how == "raise":
        raise RuntimeError("rank 1 has had enough")
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
time.sleep(600)
"""

# Trains without end: a checkpoint of rank 0 (or of the ranks that its arguments name) now and then, and an all-reduce
# all the time. Ranks that ask each other every millisecond, Horovod's default, keep a core busy while they wait.
ENDLESS = """
import os, sys, time
import horovod.torch as hvd
import torch

os.environ.setdefault("HOROVOD_CYCLE_TIME", "10")
hvd.init()
writers = sys.argv[1:] or ["0"]
folder = os.environ["HVDCLOUD_CHECKPOINT_DIR"]
step = 0
while True:
    hvd.allreduce(torch.ones(1), name="step")
    if str(hvd.rank()) in writers and step % 20 == 0:
        path = os.path.join(folder, f"rank-{hvd.rank()}-step-{step:06}.pt")
        torch.save({"step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
    if step == 0:
        print(f"rank {hvd.rank()} trains", flush=True)
    step += 1
    time.sleep(0.05)
"""

# The same where Horovod has no part in what is tested: each rank by itself.
ENDLESS_ALONE = """
import itertools, os, sys, time
from pathlib import Path

rank = os.environ.get("HOROVOD_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
writers, folder = sys.argv[1:] or ["0"], Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
for step in itertools.count():
    if rank in writers:
        (folder / "new.tmp").write_text("weights")
        (folder / "new.tmp").replace(folder / f"rank-{rank}-step-{step:06}.pt")
    if step == 0:
        print(f"rank {rank} trains", flush=True)
    time.sleep(1)
"""

# Trains without end and saves once more when it is told to end, which takes rank 1 a while.
SAVES_AT_ITS_END = """
import os, signal, sys, time
import horovod.torch as hvd
import torch

hvd.init()

def save(number, frame):
    print(f"rank {hvd.rank()} is told to end", flush=True)
    if hvd.rank() == 0:
        sys.exit(3)
    time.sleep(7)  # Horovod's launcher kills the others 5 s after the first has failed.
    torch.save({"step": step}, os.path.join(os.environ["HVDCLOUD_CHECKPOINT_DIR"], "last.pt"))
    print(f"rank {hvd.rank()} has saved", flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, save)
print(f"rank {hvd.rank()} trains", flush=True)
step = 0
while True:
    step += 1
    time.sleep(0.1)
"""

# Writes one checkpoint, and another one beside the script, and continues from those that it finds.
COUNTS_UP = """
import os
from pathlib import Path

folder = Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
rank = int(os.environ["HOROVOD_RANK"])
seen = len(list(folder.glob("count-*.pt")))
print(f"rank {rank} found {seen} and {len(list(Path().glob('runs/count-*.h5')))}", flush=True)
if rank == 0:
    (folder / f"count-{seen + 1}.pt").write_text("weights")
    Path("runs").mkdir(exist_ok=True)
    Path(f"runs/count-{seen + 1}.h5").write_text("weights")
"""

# Prints one number after the other, in lines of every length, until the test ends it.
COUNTS_LINES = """
import itertools, os, time

rank = os.environ["HOROVOD_RANK"]
for number in itertools.count():
    print(f"rank {rank} line {number} {'.' * (number * 37 % 400)}", flush=True)
    if os.path.exists("/tmp/enough"):
        break
    time.sleep(0.01)
"""

# Each rank writes one checkpoint, and one beside the script, and, in as many attempts as its argument says, waits until
# its node is lost.
ATTEMPTS = """
import os, sys, time
from pathlib import Path

folder, rank = Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"]), os.environ.get("RANK") or os.environ["HOROVOD_RANK"]
attempt = 1 + len(list(folder.glob(f"rank-{rank}-*.pt")))
path = folder / f"rank-{rank}-attempt-{attempt}.pt"
path.with_suffix(".tmp").write_text("weights")
path.with_suffix(".tmp").replace(path)
assert len(list(Path().glob(f"beside-{rank}-*.h5"))) == attempt - 1
Path(f"beside-{rank}-{attempt}.h5").write_text("weights")
print(f"rank {rank} is in attempt {attempt}", flush=True)
if attempt <= int(sys.argv[1]):
    time.sleep(600)
"""


def assert_wrote(rank: int, wrote: bytes, log: bytes) -> None:
    """Assert that a run's log has these bytes of a rank.

    Where a rank stops in a line for longer than a second, as it may on a busy machine, another one's lines come within
    it, and it has one newline more.
    """
    prefix = b"[%d] " % rank
    lines = [line.removeprefix(prefix) for line in log.split(b"\n") if line.startswith(prefix)]
    assert len(lines) > wrote.count(b"\n")
    found, expected = b"".join(lines), wrote.replace(b"\n", b"")
    assert len(found) == len(expected)
    # In pieces: pytest would take hours to show how megabytes differ.
    for at in range(0, len(expected), 80):
        assert found[at : at + 80] == expected[at : at + 80], f"from byte {at}"
