"""Trainings whose processes share one import, which takes longer than they do: each line of the standard input is a
job, {"overrides": [...], "ranks": N, "log": FILE}, whose ranks are forked from here. Prints the exit statuses."""

import json
import os
import sys
import traceback

from lightning.fabric.plugins.environments.lightning import find_free_network_port

import triptych.train  # noqa: F401 - what a run imports
from triptych.cli import main


def run(overrides: list[str], ranks: int, log: str) -> list[int]:
    """The statuses of the ranks of one training."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_network_port())}
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            if ranks > 1:
                os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank), NODE_RANK="0")
            output = os.open(f"{log}-{rank}", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(output, stream)
            sys.argv = ["triptych", "train", *overrides]
            status = 1
            try:
                status = main()
            except Exception:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)
