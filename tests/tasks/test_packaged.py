"""Functions of installed packages as kernels: found and written out without executing anything of the package."""

from __future__ import annotations

import sys

import pytest

from evo_kernel.errors import UserError
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packaged import names_function, packaged_source

FILES = {
    "__init__.py": "raise RuntimeError('executed')\n",
    "ops/__init__.py": "raise RuntimeError('executed')\nfrom .scale import *\nfrom .other import renamed as Named\n",
    "ops/scale.py": """from __future__ import annotations
from ..utils import block
if True:
    from . import other, scale as me

def inner():
    from .other import (
        renamed,
    )

class Scale:
    @staticmethod
    def apply(x): ...
""",
    "ops/other.py": "try:\n    from ..utils import block as renamed\nexcept ImportError:\n    renamed = None\n",
    "plain/deep/grid.py": "def folder(x): return x\n",  # folders without __init__.py
    "utils.py": "def block(x): return x\nround_about = 1\n",
    "circle.py": "from .circle import missing\n",
}


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    for name, text in FILES.items():
        path = tmp_path / "published" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "published" not in sys.modules


def test_the_module_that_defines_a_function_becomes_the_source():
    direct = packaged_source("published.ops.scale:Scale.apply")
    assert direct.text.startswith("from __future__ import annotations\nfrom published.utils import block\n")
    assert "    from published.ops import other, scale as me\n" in direct.text
    assert "    from published.ops.other import (\n        renamed,\n" in direct.text
    assert direct.text.endswith("\n\nrun = Scale.apply\n")
    assert packaged_source("published.ops:Scale.apply") == direct  # by `from .scale import *`


def test_what_is_imported_again_is_followed():
    assert packaged_source("published.utils:block").text == f"{FILES['utils.py']}\n\nrun = block\n"
    assert packaged_source("published.ops.other:renamed").text.endswith("    renamed = None\n\n\nrun = renamed\n")
    assert packaged_source("published.plain.deep.grid:folder").text.endswith("\n\nrun = folder\n")


def test_a_task_may_name_a_function_as_its_first_kernel(tmp_path):
    task = "CASES = [{'n': 4}]\nSEED = 'published.utils:block'\ndef inputs(case, generator, device): ...\n"
    (tmp_path / "my.py").write_text(
        task.replace("...", "return __import__('torch').ones(case['n'])") + "def reference(x): return x\n"
    )
    assert load(tmp_path / "my.py").seed == packaged_source("published.utils:block")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("published.nothing:f", "no module of an installed package"),
        ("absent_altogether:f", "Install it beside evo-kernel"),
        ("sys:exit", "no module"),
        ("published.utils:missing", "no function or class missing"),
        ("published.circle:missing", "name the one that defines it"),
    ],
)
def test_names_that_lead_nowhere(name, says):
    with pytest.raises(UserError, match=says):
        packaged_source(name)


def test_what_is_no_name_of_a_function():
    assert not any(map(names_function, ["kernel.py", "kernelbench:PATH/level1/23", "a:b/c", "C:\\x.py", "a:b:c", "-"]))


def test_modules_with_kernels_become_part_of_the_source(tmp_path):
    parts = {
        "kernels.py": "from .tuning import configs, other\n@triton.autotune(configs=configs(8), key=[])\n@triton.jit\n"
        "def k(x):\n    tl.program_id(0)\n",
        "tuning.py": "def configs(n): return [n]\nother = 1\n",
        "clash.py": "import triton\ndef k(y):\n    tl.program_id(1)\ndef call(): return k\n",
        "hidden.py": "def k(y):\n    tl.program_id(1)\ndef f(k): return k\n",
        "layer.py": "from __future__ import annotations\nfrom .kernels import k as kernel\nfrom . import clash, hidden\n"
        "from .hidden import k as third\nfrom .utils import block\n"
        "def apply(x): kernel[(1,)](x); clash.k[(1,)](x); third[(1,)](x); more()\ndef more(hidden): hidden.k\n"
        "def unused(): clash.call()\n",
    }
    for name, text in parts.items():
        (tmp_path / "published" / name).write_text(text)
    text = packaged_source("published.layer:apply").text
    assert text.startswith("from __future__ import annotations\ndef configs(n)")
    assert text.index("def configs") < text.index("def k(x)") < text.index("\nkernel = k\n") < text.index("def apply")
    assert "published.tuning" not in text and "published.kernels" not in text
    assert "def k_2(y):\n    tl.program_id(1)\ndef call(): return k_2\n" in text  # another k is there already
    assert "; k_2[(1,)](x); " in text and "clash.k" not in text
    assert "hidden.k" in text and "clash.call" in text  # a parameter's name; not needed
    assert "from published.hidden import k as third\n" in text  # its k cannot get another name
    assert "from published.utils import block\n" in text  # leads to no kernel
    compile(text, "layer", "exec")
