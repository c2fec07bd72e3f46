"""What the closed form saves: the gradient form over it, in time and memory, at ten past tasks.

The gradient form (`retroactive="gradient"`) is the paper's: every past delta is dense and trained
along. Steps take turns; memory is the peak of beginning a task and three steps, over what a fresh
process held before.
"""

from __future__ import annotations

from functools import partial

from benchmarks._document import Section, Table
from benchmarks._measure import Peak, alternate, in_fresh_process, median, over
from benchmarks._past import CASES, batch, begun, step, with_past
from sigmatau import APDNet

FORMS = ("closed", "gradient")


def peak(case: str, form: str, tasks: int) -> int:
    """Return the bytes that training takes; to be called in a process of its own."""
    build, shape, size = CASES[case]
    x, y = batch(shape, size)
    net = with_past(APDNet(build(), l1=4e-4, retroactive=form), tasks)
    with Peak() as held:
        trainee = begun(net, x)
        for _ in range(3):
            step(trainee, x, y)
    return held.extra


def main(tasks: int = 10, rounds: int = 15) -> Section:
    rows = []
    numbers: dict[str, float] = {}
    for case, (build, shape, size) in CASES.items():
        x, y = batch(shape, size)
        sides = {}
        for form in FORMS:
            net = with_past(APDNet(build(), l1=4e-4, retroactive=form), tasks)
            sides[form] = partial(step, begun(net, x), x, y)
        times = alternate(sides, rounds)
        closed, gradient = (in_fresh_process("gradient.peak", case, f, tasks) for f in FORMS)
        ratio = over(times, "gradient", "closed")
        numbers |= {f"{case}, time": ratio, f"{case}, memory": gradient / closed}
        shown = [f"{1e3 * median(times, form):.2f}" for form in FORMS]
        memory = [f"{closed / 2**20:.0f}", f"{gradient / 2**20:.0f}", f"{gradient / closed:.1f}"]
        rows.append([case, *shown, f"{ratio:.1f}", *memory])
    columns = ["network", "closed, ms", "gradient, ms", "times", "closed, MiB", "gradient, MiB"]
    return Section([Table(f"{tasks} past tasks", [*columns, "times"], rows)], numbers=numbers)


if __name__ == "__main__":
    print(main())
