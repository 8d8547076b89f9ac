"""Two processes say the same of the same, and make the same keys: other hashes, another directory, another past."""

import os
import subprocess
import sys

from repository import HELPERS, import_path

PROGRAM = """
import collections, dataclasses, enum, functools, sys, torch
from fusioncache.accelerators.programs.describe import Describer

class Kind(enum.Flag):
    FAST = 1
    SMALL = 2

@dataclasses.dataclass
class Settings:
    names: frozenset = frozenset({"a", "b", "c", "d", "e"})
    kinds: set = dataclasses.field(default_factory=lambda: {Kind.FAST, Kind.SMALL, "x", 1, (2, "y")})
    kind: Kind = Kind.FAST | Kind.SMALL

def scale(x, by={"p", "q", "r"}):
    return x in {"a", "b", "c"} and by

class Model(torch.nn.Module):
    known = {"u", "v", "w", "x"}

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in "abc"})
        self.heads["c"].weight = self.heads["a"].weight
        self.settings = Settings()
        self.functions = {scale, len, functools.partial(scale, 1), Settings, Model, torch.nn.functional.silu}
        self.hook = self.register_forward_hook(lambda module, arguments, output: output)
        self.tables = collections.defaultdict(set, a={"m", "n", "o"})
        self.tensors = {torch.ones(2), torch.ones(3)}
        self.marks = {object()}

    def forward(self, x):
        return [x for name in ("a", "b") if name in {"a", "z", "y"}]

if "with a past" in sys.argv:
    torch.nn.ReLU().register_forward_hook(print)
    hash(Kind.FAST), Kind(2), [object() for _ in range(1000)]
describer = Describer()
for path, text in describer.walk("model", Model()):
    print(path, text)
for name, text in describer.classes.items():
    print(name, text)
for value in (Model, scale, Settings(), torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.linear):
    print(describer.describe(value))

import fusioncache, program_keys, thunder
from thunder.transforms.prune_prologue_checks import PrunePrologueChecks

model = program_keys.Model()
model.extra = {"names": {"b", "a", "c"}, "frozen": frozenset("xyz"), "function": lambda x: x in {"p", "q"}}
model.norm.register_forward_hook(lambda module, args, output: None)
transforms = [fusioncache.FusionCache(backend="eager"), PrunePrologueChecks()]
key = program_keys.key_of(program_keys.jit(model, transforms=transforms), torch.zeros(3, 4), names={"b", "a", "c"})
print(key.digest)
"""


def test_two_processes_have_the_same_texts_and_keys(tmp_path):
    processes = []
    for number, past in enumerate(((), ("with a past",))):
        folder = tmp_path / f"place {number}"
        folder.mkdir()
        (folder / "program.py").write_text("\n" * number + PROGRAM)
        command = [sys.executable, "-W", "ignore", str(folder / "program.py"), *past]
        environment = {**os.environ, "PYTHONHASHSEED": str(number + 1), "PYTHONPATH": import_path(HELPERS)}
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment))
    first, second = (process.communicate()[0].splitlines() for process in processes)
    assert len(first) > 40 and len(first[-1]) == 64
    assert first == second
