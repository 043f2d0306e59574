"""The commands. A module each, imported when its command runs."""

import os

# The linear algebra of a fit is of small matrices, which several threads of numpy's library only slow down: sixty times
# as much CPU time on two cores. It reads this when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
