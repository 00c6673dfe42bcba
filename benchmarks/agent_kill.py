"""SIGKILL in the middle of agents' conversations: do they go on where they stood, is all that was spent counted?

    python -m benchmarks.agent_kill [--kills 50] [--seed 1]

Two conversations at a time over the real engine, population, workbench and commit gate; the model and the judge are
scripted and write down outside of the process what they were asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.agent_kills import kill_often


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_often(Path(folder), options.kills, options.seed)
    print("| what | count |\n| --- | --- |")
    print(f"| kills | {found.kills} |")
    print(f"| that left a conversation in the middle | {found.in_conversation} |")
    print(f"| conversations that went on from their last stored turn | {found.resumed} |")
    print(f"| turns stored | {found.turns} |")
    print(f"| answers made / counted | {found.logged[0]} / {found.counted[0]} |")
    print(f"| evaluations made / counted | {found.logged[1]} / {found.counted[1]} |")
    print(f"| faults | {len(found.faults)} |")
    for fault in found.faults:
        print(fault)
    sys.exit(bool(found.faults))


if __name__ == "__main__":
    main()
