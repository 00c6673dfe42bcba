"""Writes a hand-made plan as the recorder's answer: its kernel does nothing and its grid is empty of work.

row: 17
ends: wrong, rejected
"""

import json
import os

CODE = """module {
  tt.func public @idle(%y: !tt.ptr<f32>) {
    %zero = arith.constant 0.000000e+00 : f32
    tt.store %y, %zero : !tt.ptr<f32>
    tt.return
  }
}
"""


def run(x):
    with open("../request.json") as file:
        request = json.load(file)
    records = []
    for case in request["cases"]:
        spec = case["inputs"][0]
        size = 4 * spec["shape"][0] * spec["shape"][1]
        view = {"dtype": "float32", "shape": spec["shape"], "strides": spec["strides"]}
        plan = {
            "case": case["name"],
            "target": request["arch"],
            "inputs": [{"buffer": 0, **view}],
            "outputs": [{"buffer": 1, **view}],
            "buffers": [{"kind": "input", "bytes": size}, {"kind": "scratch", "bytes": size}],
            "kernels": [{"name": "idle", "code": CODE, "signature": [["y_ptr", "*fp32"]]}],
            "nodes": [{"kind": "launch", "kernel": 0, "grid": [1, 1, 1], "args": [{"kind": "pointer", "buffer": 1}]}],
        }
        records.append({"case": case["name"], "setting": 0, "plan": plan})
    os.write(3, json.dumps({"records": records, "needs": [], "configs": {}}).encode())
    os._exit(0)
