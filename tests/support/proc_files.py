"""What the kernel writes in /proc on a node, shortened."""

from __future__ import annotations

STAT = """\
cpu  1000 50 300 8000 200 10 40 25 7 0
cpu0 500 25 150 4000 100 5 20 12 3 0
intr 12345
"""
MEMINFO = """\
MemTotal:        8000000 kB
MemFree:          100000 kB
MemAvailable:    6000000 kB
Cached:          5000000 kB
"""
NET = """\
Inter-|   Receive    |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 1000000 5000 0 0 0 0 0 0 1000000 5000 0 0 0 0 0 0
  eth0:2000000000  900    0    0    0     0          0         0 3000000    800    0    0    0     0       0          0
"""
