"""Child processes that answer many questions each: importing PyTorch and Triton takes longer than most answers do."""

import json
import subprocess
import sys
import threading
import traceback
from pathlib import Path

from tests.support.scripts import script

HERE = Path(__file__).parent
LIMIT_S = 240
"""For one answer."""


class Child:
    """A script of this folder that ends in `answer`; started with the first question."""

    def __init__(self, script):
        self._script, self._process = script, None

    def ask(self, **question):
        """What the script answers; its traceback fails the test that asked."""
        if self._process is None:
            self._process = subprocess.Popen(
                script(HERE / self._script),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        limit = threading.Timer(LIMIT_S, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        assert line, f"{self._script} ended without an answer, or took more than {LIMIT_S} s"
        reply = json.loads(line)
        assert "error" not in reply, reply["error"]
        return reply["answer"]

    def close(self):
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(30)


def answer(function):
    """In the child: call `function` with what each line names, until there are no more; stdout is for answers alone."""
    replies, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            reply = {"answer": function(**json.loads(line))}
        except Exception:  # noqa: BLE001 (whatever a seed raises is the answer)
            reply = {"error": traceback.format_exc()[-3000:]}
        print(json.dumps(reply), file=replies, flush=True)
