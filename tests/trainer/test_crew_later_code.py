"""A notebook defines a dataset, or defines it again, when forked workers of a crew run already."""

from __future__ import annotations

from scripts import run_script

SCRIPT = """
import shmloader

class Kept:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return index

def cell(name, number):
    code = f"class {name}(Kept):\\n    def __getitem__(self, index):\\n        return index + {number}"
    exec(code, globals())
    return globals()[name]()

def get(dataset, **options):
    try:
        return [batch.item() for batch in shmloader.DataLoader(dataset, crew=crew, **options)]
    except RuntimeError as error:
        return str(error)

crew = shmloader.Crew(2, multiprocessing_context="fork")
old = cell("Changed", 10)
first = shmloader.DataLoader(cell("Early", 30), crew=crew, persistent_workers=True)
print(get(Kept()), get(old))
cell("Early", 40)
new = cell("Changed", 20)
print(get(new))
print(get(shmloader.Subset(cell("Later", 0), [1])))
print(get(Kept()))
print([batch.item() for batch in first])
crew.close()
print(get(new), get(Later()))
crew.close()
"""


def test_what_forked_workers_do_not_have_is_an_error_that_says_what_to_do() -> None:
    ran = run_script(SCRIPT)
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()[-6:]
    assert lines[0] == "[0, 1] [10, 11]"
    for name, line in zip(("Changed", "Later"), lines[1:3], strict=True):
        assert line.startswith(f"{name} was defined, or defined again, after the crew's workers were started")
        assert "crew.close()" in line
    assert lines[3:] == ["[0, 1]", "[30, 31]", "[20, 21] [0, 1]"]


PARTS = """
import functools
import shmloader

class Numbers:
    def __init__(self, transform=None):
        self.transform = transform
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return index if self.transform is None else self.transform(index)

def cells(number):
    exec(f'''
def add(index):
    return index + {number}

class Add:
    def __call__(self, index):
        return index + {number}
    def method(self, index):
        return index + {number}
    def collated(self, samples):
        return samples[0] + {number}

class Outer:
    class Add:
        def __call__(self, index):
            return index + {number}

def collated(samples):
    return samples[0] + {number}
''', globals())

class CallsAdd:
    def __call__(self, index):
        return add(index)

def calls_a_lambda(index):
    return (lambda: Add()(index))()

def got(dataset, **options):
    try:
        return [int(batch) for batch in shmloader.DataLoader(dataset, crew=crew, **options)]
    except RuntimeError as error:
        return str(error).split(" was defined, or defined again")[0]

def all_forms():
    return [
        got(Numbers(add)),
        got(Numbers(Add())),
        got(Numbers(Add().method)),
        got(Numbers(Outer.Add())),
        got(Numbers(functools.partial(add))),
        got(shmloader.Subset(Numbers(Add()), [0, 1])),
        got(Numbers(), collate_fn=collated),
        got(Numbers(), collate_fn=functools.partial(collated)),
        got(Numbers(), collate_fn=Add().collated),
        got(Numbers(CallsAdd())),
        got(Numbers(calls_a_lambda)),
    ]

cells(10)
crew = shmloader.Crew(2, multiprocessing_context="fork")
print(got(Numbers()), all_forms() == [[10, 11]] * 11)
cells(20)
print(all_forms())
print(got(Numbers()))
crew.close()
print(all_forms() == [[20, 21]] * 11)
crew.close()
"""


def test_so_is_the_code_that_a_dataset_or_a_collate_function_has_in_it_or_calls() -> None:
    ran = run_script(PARTS)
    assert ran.status == 0, ran.err
    before, refused, plain, after = ran.out.splitlines()[-4:]
    assert before == "[0, 1] True"
    by_name = ["add", "Add", "Add", "Outer.Add", "add", "Add", "collated", "collated", "Add", "add", "Add"]
    assert refused == str(by_name)
    assert (plain, after) == ("[0, 1]", "True")
