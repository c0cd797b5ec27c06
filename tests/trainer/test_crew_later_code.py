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
early = shmloader.DataLoader(cell("Early", 30), crew=crew, persistent_workers=True)
print(get(Kept()), get(old))
cell("Early", 40)
new = cell("Changed", 20)
print(get(new))
print(get(shmloader.Subset(cell("Later", 0), [1])))
print(get(Kept()))
print([batch.item() for batch in early])
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
