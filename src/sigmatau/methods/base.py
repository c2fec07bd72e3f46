"""What every method is to its user: a network that learns task after task.

`Method` does all that is alike: it checks data before any work is done, trains in the one loop,
predicts, measures, saves and loads. A method writes only what is its own, as functions of a state
that is never changed but replaced: how a task is begun (`_begin`), what remains of it (`_keep`),
how a task's network is put together (`_compose`), what is left when it is dropped (`_drop`), and
what goes into the file and comes back (`_records`, `_restore`).
"""

from __future__ import annotations

import copy
import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigmatau
from sigmatau.capacity import BESIDE, Capacity, Count, count, saved_size
from sigmatau.config import TrainingSettings
from sigmatau.core import container
from sigmatau.core.container import Container, RawRecord, Record
from sigmatau.core.layout import walk
from sigmatau.core.state import Lazy
from sigmatau.data import Array, Batches, Data, as_batches, as_tensor
from sigmatau.errors import BackboneError, DataError, FileError, TaskError, nearest
from sigmatau.inspection import Facts, check_forward, inspect_data, misfit
from sigmatau.methods.learnt import Memory, Report, S, TaskInfo, listed, relisted
from sigmatau.parallel import Together
from sigmatau.progress import with_progress
from sigmatau.scoring import Metric, accuracy_of, scorer
from sigmatau.training import Hook, Loss, Trainee, fit, gradients

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ABOUT = "about"  # the record that lists the tasks


class Method(ABC, Generic[S]):
    """A network that learns task after task."""

    name: ClassVar[str]
    Settings: ClassVar[type[TrainingSettings]] = TrainingSettings
    can_forget: ClassVar[bool] = False
    # The settings published for a benchmark, by the stream's name.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    # A setting that, when given, takes the place of a published one.
    replaces: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        backbone: nn.Module,
        *,
        head: str | None = "auto",
        keep: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        if not isinstance(backbone, nn.Module):
            raise BackboneError(f"the backbone must be a torch.nn.Module, not {backbone!r}")
        self.settings = self.Settings.of(settings)
        self.keep = tuple(keep)
        self.layout = walk(backbone, head, self.keep)
        self._backbone = copy.deepcopy(backbone)
        for parameter in self._backbone.parameters():  # entries are numbered in this order
            parameter.data = parameter.data.contiguous()
        self._held: Lazy[Memory[S]] = Lazy(Memory(self._fresh()))
        self._serving: tuple[Memory[S], str, nn.Module] | None = None
        self._lock = threading.RLock()

    # What a method writes

    @abstractmethod
    def _fresh(self) -> S:
        """Return the state before any task."""

    @abstractmethod
    def _begin(self, state: S, task: str, facts: Facts, criterion: Loss) -> Trainee:
        """Return what the loop trains to learn `task`. The state must stay as it is."""

    @abstractmethod
    def _keep(self, state: S, task: str, trainee: Trainee, train: Batches) -> tuple[S, float]:
        """Return the state with the task learnt, and the numbers added over the base network's."""

    @abstractmethod
    def _compose(self, state: S, task: str, module: nn.Module) -> nn.Module:
        """Put the network of `task` together, in `module` (a backbone) or in one of its own."""

    def _plan(self, state: S) -> tuple[int, int]:
        """Return how many epochs the next task takes, and how many last ones are selected from."""
        return self.settings.epochs, self.settings.select_last

    def _drop(self, state: S, task: str) -> S:
        """Return the state without `task`."""
        raise TaskError(
            f"{self.name} cannot forget a single task: its tasks share all their weights. Methods "
            "with parts of a task's own can, such as apd1"
        )

    @abstractmethod
    def _records(self, state: S) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        """Return what goes into the file: records, and whatever fits in JSON."""

    @abstractmethod
    def _restore(self, source: Container, meta: Mapping[str, Any], tasks: Sequence[str]) -> S:
        """Return the state that `_records` was made from."""

    # What a user calls

    @property
    def _memory(self) -> Memory[S]:
        return self._held()

    @_memory.setter
    def _memory(self, memory: Memory[S]) -> None:
        self._held = Lazy(memory)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The learnt tasks, in the order they came."""
        return tuple(self._memory.infos)

    @property
    def infos(self) -> Mapping[str, TaskInfo]:
        """What is known of each task besides its weights."""
        return self._memory.infos

    @property
    def device(self) -> torch.device:
        """Where the backbone is: tasks are learnt and predicted there."""
        return next(self._backbone.parameters()).device

    def learn(
        self,
        task: str,
        train: Data,
        val: Data | None = None,
        *,
        outputs: int | None = None,
        loss: Loss | None = None,
        metric: Metric | None = None,
        hooks: Iterable[Hook] = (),
        progress: bool | None = None,
        resume: Mapping[str, Tensor] | None = None,
        fabric: Fabric | None = None,
    ) -> Report:
        """Learn a new task; the network stays usable and unchanged until this has succeeded.

        Data is a pair of tensors, a Dataset or a DataLoader; it is brought to the network's device.
        Integer targets are class labels and train with cross-entropy, or an `nn.CrossEntropyLoss`
        with weights or smoothing of yours; for others give a `loss(outputs, targets)` and, if the
        targets' shape does not tell it, the number of `outputs`. With `val`, the best epoch among
        the last is kept, by accuracy, by `metric(outputs, targets)` (larger is better), or by the
        loss.

        `progress` shows a bar (by default on a terminal); `hooks` are told of every epoch, and
        `resume` takes a training up again from what a hook was given.

        With a launched `fabric` (Lightning's), the processes it has started share the work of each
        batch, in its precision. Every one of them makes the same calls with the same data, and a
        `loss` of yours must be a mean over rows.
        """
        began = time.perf_counter()
        together = None if fabric is None else Together(fabric, self.device)
        if fabric is not None and not fabric.is_global_zero:
            progress = False
        if not isinstance(task, str) or not task:
            raise TaskError(f"a task's name must be a string that is not empty, got {task!r}")
        memory = self._memory
        if task in memory.infos:
            raise TaskError(f"task {task!r} is learnt already: forget it first, or use a new name")
        chosen = self.settings
        batches = as_batches(train, chosen.batch_size, self.device, "the training data")
        checks = (
            None
            if val is None
            else as_batches(val, chosen.batch_size, self.device, "the validation data")
        )
        facts = inspect_data(batches, checks, outputs, loss, headless=self.layout.head is None)
        criterion: Loss = loss if loss is not None else F.cross_entropy
        check_forward(self._backbone, self.layout.head, facts, criterion)

        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), with_progress(hooks, progress) as told:
            torch.manual_seed(self._seed("global", task))
            trainee = self._begin(memory.state, task, facts, criterion)
            epochs, select_last = self._plan(memory.state)
            run = fit(
                trainee,
                batches,
                checks,
                task=task,
                epochs=epochs,
                lr=chosen.lr,
                lr_decay=chosen.lr_decay,
                select_last=select_last,
                score=scorer(facts.labels, criterion, metric),
                generator=torch.Generator().manual_seed(self._seed("shuffle", task)),
                hooks=told,
                resume=resume,
                gradients=gradients if together is None else together.gradients,
            )
            state, growth = self._keep(memory.state, task, trainee, batches)
        info = TaskInfo(facts.outputs, facts.labels, growth)
        with self._lock:
            if self._memory is not memory:
                raise TaskError(
                    f"the network changed while {task!r} was learnt: learn and forget one at a time"
                )
            self._memory = Memory(state, {**memory.infos, task: info})
        score = run.epochs[run.best_epoch].score
        seconds = time.perf_counter() - began
        return Report(task, tuple(run.epochs), run.best_epoch, score, growth, seconds)

    @torch.no_grad()
    def predict(self, task: str | Sequence[str], x: Array) -> Tensor:
        """Return the network's outputs (logits, for labels) for inputs of a task.

        `task` may be a list with a name for every row: then rows of all tasks are predicted in one
        call, and where heads differ in width the narrower ones are filled up with -inf.
        """
        x = as_tensor(x)
        if not isinstance(x, Tensor):
            raise DataError(f"inputs must be a tensor or a NumPy array, got {type(x).__name__}")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise DataError("inputs are NaN or infinite: clean or mask them first")
        x = x.to(self.device).contiguous()  # as in training
        if isinstance(task, str):
            with self._lock:
                return self._outputs(task, x)
        if len(task) != len(x):
            raise DataError(f"{len(task)} task names for {len(x)} rows: give one for every row")
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(task):
            rows.setdefault(name, []).append(row)
        for name in rows:
            self._known(name)
        if not rows:
            raise DataError("no rows to predict")
        with self._lock:
            parts: dict[str, Tensor] = {}
            for name, index in rows.items():
                parts[name] = self._outputs(name, x[index])
        widest = max(parts.values(), key=lambda part: part.shape[1:])
        mixed = widest.new_full((len(x), *widest.shape[1:]), -torch.inf)
        for name, index in rows.items():
            mixed[torch.tensor(index), : parts[name].shape[1]] = parts[name]
        return mixed

    def accuracy(self, task: str, data: Data) -> float:
        """Return the share of rows whose label is predicted."""
        if not self._known(task).labels:
            raise DataError(
                f"task {task!r} was not learnt from labels: use evaluate(task, data, metric)"
            )
        return self.evaluate(task, data, accuracy_of)

    def evaluate(self, task: str, data: Data, metric: Metric) -> float:
        """Return `metric(outputs, targets)` over all of the data."""
        self._known(task)
        batches = as_batches(data, max(self.settings.batch_size, 256), self.device)
        outputs, targets = [], []
        for x, y in batches.ordered():
            outputs.append(self.predict(task, x))
            targets.append(y)
        return metric(torch.cat(outputs), torch.cat(targets))

    def forget(self, task: str) -> None:
        """Drop a task and all that is its own; every other task stays as it is, to the bit."""
        self._known(task)
        with self._lock:
            memory = self._memory
            infos = {name: info for name, info in memory.infos.items() if name != task}
            self._memory = Memory(self._drop(memory.state, task), infos)

    def capacity(self, base: nn.Module | None = None) -> Capacity:
        """Return how much is stored, as fractions of the base network.

        That is the backbone, or `base`: another width of it, to compare networks of two sizes.
        """
        records, meta = self._file()
        counts = {n: count(_opened(record)) for n, record in records.items() if n != ABOUT}
        main = sum((c for n, c in counts.items() if not n.startswith(BESIDE)), Count())
        beside = sum((c for n, c in counts.items() if n.startswith(BESIDE)), Count())
        one = self.layout if base is None else walk(base, self.layout.head, self.keep)
        heads = sum(one.head_size(info.outputs or 0) for info in self._memory.infos.values())
        return Capacity(
            main.nonzero / (one.trunk_size + heads) if self.tasks else 0.0,
            (main.stored + beside.stored) / one.size,
            container.size(records, meta) / saved_size(self._backbone if base is None else base),
            beside.stored / one.size,
        )

    def export(self, task: str) -> nn.Module:
        """Return a plain network with the weights of `task`, free of this library."""
        with self._lock:
            module = copy.deepcopy(self._network(task))
        for parameter in module.parameters():
            parameter.grad = None
        return module

    def export_onnx(self, task: str, path: str | PathLike[str], example: Tensor) -> None:
        """Write the network of `task` as an ONNX file; `example` is a batch of its inputs."""
        from sigmatau.onnx import export_onnx

        export_onnx(self.export(task), example, path)

    def save(self, path: str | PathLike[str]) -> int:
        """Write everything to one file, whole or not at all; return its size in bytes."""
        records, meta = self._file()
        return container.write(path, records, meta)

    @classmethod
    def load(cls, path: str | PathLike[str], backbone: nn.Module) -> Self:
        """Open a saved network. `backbone` gives the structure; tasks are read when first used."""
        source = Container.open(path)
        meta = source.meta
        if meta.get("method") != cls.name:
            raise FileError(
                f"{path} holds a network of method {meta.get('method')!r}, not {cls.name!r}: "
                "open it with sigmatau.load"
            )
        return cls.open(source, backbone)

    @classmethod
    def open(cls, source: Container, backbone: nn.Module) -> Self:
        """Take a network from an open file."""
        path = source.path
        meta = cast(Mapping[str, Any], source.meta)
        try:
            net = cls(backbone, head=meta["head"], keep=meta["keep"], **meta["settings"])
            fingerprint = str(meta["backbone"])
        except BackboneError as error:
            raise FileError(f"{path} does not fit this backbone: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} has unusable metadata ({error}): restore a copy") from error
        if fingerprint != net.layout.fingerprint():
            raise FileError(
                f"{path} belongs to another backbone (structure {fingerprint}, this one is "
                f"{net.layout.fingerprint()}): build the network it was saved with"
            )
        net._held = Lazy(fetch=lambda: net._recall(source))
        return net

    def _recall(self, source: Container) -> Memory[S]:
        """Return what a file holds. Its list of tasks is read now, the tasks themselves later."""
        try:
            infos, own = relisted(source.read(ABOUT))
            source.device = self.device
            state = self._restore(source, own, tuple(infos))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileError(f"{source.path}: its list of tasks is unusable: {error}") from error
        return Memory(state, infos)

    def summary(self) -> str:
        """Return a table of which parts of the network are shared and which are a task's own."""
        from sigmatau.summary import summarise

        return summarise(self)

    def __repr__(self) -> str:
        given = self.settings.model_dump(exclude_defaults=True)
        told = ", ".join([repr(self.name), *(f"{key}={value!r}" for key, value in given.items())])
        names = self.tasks
        some = names if len(names) < 5 else (*names[:3], "...", names[-1])
        return f"<{type(self).__name__}({told}), tasks: {', '.join(some) or 'none'}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a network that goes its own way from here. What was learnt is never changed."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._backbone = copy.deepcopy(self._backbone, memo)
        other._serving, other._lock = None, threading.RLock()
        return other

    __copy__ = copy.deepcopy

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "networks are not pickled: use net.save(path), and sigmatau.load(path, backbone)"
        )

    # What is alike in all methods

    def _known(self, task: str) -> TaskInfo:
        try:
            return self._memory.infos[task]
        except (KeyError, TypeError):
            raise TaskError(f"no task {task!r}; {nearest(str(task), self.tasks)}") from None

    def _network(self, task: str) -> nn.Module:
        """Return the network of `task`, ready to predict. Call it with the lock held."""
        self._known(task)
        memory = self._memory
        if self._serving is None or self._serving[0] is not memory or self._serving[1] != task:
            module = self._serving[2] if self._serving else copy.deepcopy(self._backbone)
            self._serving = None  # a failure below must not leave a half-written network in use
            module = self._compose(memory.state, task, module)
            if module.training:  # telling every layer takes as long as writing a small network
                module.eval()
            self._serving = (memory, task, module)
        return self._serving[2]

    def _outputs(self, task: str, x: Tensor) -> Tensor:
        network = self._network(task)
        try:
            out: Tensor = network(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise misfit(f"the network of {task!r}", x, error) from error
        return out

    def _seed(self, *parts: object) -> int:
        """Derive a seed for one purpose; a task's randomness depends on its name, not its place."""
        told = "/".join(str(part) for part in (self.settings.seed, *parts))
        return int.from_bytes(hashlib.sha256(told.encode()).digest()[:8], "big") >> 1

    def _file(self) -> tuple[dict[str, Record | RawRecord], dict[str, Any]]:
        memory = self._memory
        records, own = self._records(memory.state)
        meta = {
            "method": self.name,
            "sigmatau": sigmatau.__version__,
            "torch": str(torch.__version__),
            "backbone": self.layout.fingerprint(),
            "head": self.layout.head,
            "keep": list(self.keep),
            "settings": self.settings.model_dump(mode="json"),
        }
        # What grows with the tasks is a record of its own, so that opening need not read it.
        return {ABOUT: listed(memory.infos, own), **records}, meta


def _opened(record: Record | RawRecord) -> Record:
    return container.unpack(record.read()) if isinstance(record, RawRecord) else record
