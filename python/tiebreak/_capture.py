"""Capture: `capture` turns a PyTorch model, its loss and its optimizer into a program that needs no PyTorch."""

from __future__ import annotations

import json
import math
import os
import struct
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from . import _in_place, _left_out
from ._call import StrPath, count, path, result_of
from ._errors import CaptureError, MalformedError, UndecidedError, UsageError
from ._batch import Batch, batch_of
from ._fit import check_data, files_of
from ._padding import Padding, check_padding
from ._instead import named_once
from ._match import BROKEN, matched
from ._matcher import Matcher, Part, Value, from_role, to_role
from ._run import Run
from ._schedule import Fall, read, schedule_of
from ._source import of_network


class Captured:
    """A captured model: the files of a program, and the way back to the model's tensors."""

    def __init__(
        self,
        folder: str,
        parts: Dict[str, Part],
        ties: Dict[str, str],
        buffers: Dict[str, str],
        rate: float,
        inputs: Dict[str, Any],
        fall: Optional[Fall] = None,
        padding: Padding = Padding(None, None),
        kept: Mapping[str, Any] = {},
        rounding: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.folder = folder
        self._rounding = rounding
        self.learning_rate = rate
        self.inputs, self._fall, self._padding = inputs, fall, padding
        self._parts, self._ties, self._buffers, self._kept = parts, ties, buffers, kept

    @property
    def network(self) -> str:
        """The network file (docs/NETWORKS.md)."""
        return os.path.join(self.folder, "network.json")

    @property
    def program(self) -> str:
        """The program file, which a job can name."""
        return os.path.join(self.folder, "program.bin")

    @property
    def weights(self) -> str:
        """The model's tensors at capture, as the initial values of a run."""
        return os.path.join(self.folder, "weights.safetensors")

    def job(self, data: Mapping[str, Any], steps: int, **more: Any) -> Dict[str, Any]:
        """A job for `tiebreak.train`: the program from the captured weights, on these data. Paths are relative to the current folder.

        data: the `[data]` table of a job, as `tiebreak.dataset` returns it.
        steps: the number of training steps.
        more: other keys of a job. Without `schedule` each step has the rate of the captured scheduler, or else of the optimizer. The `files`
            of an `evaluation` may be a table that `dataset` returned.

        Raises UsageError if the files' headers say another type or shape than the example batch had, if a text is padding alone, or if the
        scheduler's line or cosine does not end at the last step.

        >>> data = tiebreak.dataset(torch_dataset, "data/")
        >>> run = tiebreak.train(captured.job(data, steps=100), out="runs/first", key="me.key")
        """
        if not isinstance(data, Mapping):
            raise UsageError(f"data is a {type(data).__name__}", "give the table that tiebreak.dataset returns, or a dict of `[data]`")
        check_data(data, self.inputs)
        check_padding(data, self.inputs, self._padding)
        if self._fall is not None and "schedule" in more:
            raise UsageError("a scheduler was captured, and a schedule is given", "give one of them")
        steps = count("steps", steps, 1)
        job: Dict[str, Any] = {
            "steps": steps,
            "program": os.path.relpath(self.program),
            "network": os.path.relpath(self.network),
            "init": {"weights": [os.path.relpath(self.weights)]},
            "schedule": {"peak": self.learning_rate} if self._fall is None else schedule_of(self._fall, self.learning_rate, steps),
            "data": dict(data),
        }
        if self._rounding is not None:
            job["rounding"] = dict(self._rounding)
        evaluation = more.get("evaluation")
        if isinstance(evaluation, Mapping) and isinstance(evaluation.get("files"), Mapping):
            check_data(evaluation["files"], self.inputs)
            check_padding(evaluation["files"], self.inputs, self._padding)
            more["evaluation"] = {**evaluation, "files": files_of("evaluation.files", evaluation["files"])}
        return {**job, **more}

    def state_dict(self, run: Run, step: Optional[int] = None) -> Dict[str, Any]:
        """The model after a step of a run, by default the last one that the run holds, for `model.load_state_dict`.

        Buffers that a run does not train are those of the model at capture. `num_batches_tracked` of a batch normalisation counts the
        run's steps, too. Digests are compared with the step's record first.
        """
        import torch

        step, arrays = run._state(step, "program")
        found: Dict[str, Any] = {}
        for source in dict.fromkeys(part.source for part in self._parts.values()):
            own = {name: part for name, part in self._parts.items() if part.source == source}
            names = sorted(own, key=lambda name: own[name].number)
            whole = from_role([arrays[name] for name in names], [own[name] for name in names])
            found[source] = torch.from_numpy(np.array(whole, order="C"))
        for theirs, ours in self._buffers.items():
            found[theirs] = torch.from_numpy(np.array(arrays[f"buffer/{ours}"]))
        running = {*self._buffers, *(name for name, source in self._ties.items() if source in self._buffers)}
        tracked = {f"{name.rpartition('.')[0]}.num_batches_tracked".lstrip(".") for name in running}
        found.update({name: tensor + step if name in tracked else tensor.clone() for name, tensor in self._kept.items()})
        found.update({name: found[source] for name, source in self._ties.items()})
        return found

    def __repr__(self) -> str:
        return f"tiebreak.Captured({self.folder!r})"


def capture(
    model: Any,
    loss_fn: Any,
    optimizer: Any,
    example_batch: Tuple[Any, Any],
    *,
    out: StrPath,
    scheduler: Any = None,
    micro_batches: int = 1,
    clip_norm: Optional[float] = None,
    convolution: int = 1,
    digits: Optional[int] = None,
    rounding: Optional[Mapping[str, Any]] = None,
) -> Captured:
    """Turn a PyTorch model into a program, and write the program, the model's weights and the network file to a folder.

    model: an nn.Module of binary32 parameters, in training mode.
    loss_fn: called as loss_fn(model(inputs), labels); its end is a cross entropy.
    optimizer: a torch.optim.AdamW, Adam or SGD of the model's parameters. Parameters that it does not have are frozen.
    example_batch: (inputs, labels) of one micro-batch. Its values do not matter, and its sizes are the program's. Inputs may be a dict as
        a tokenizer of transformers gives it, of token ids with an attention_mask and token_type_ids of zeros. Where texts are padded, the
        example's attention_mask has to be 0 at padding, which is then one token id: the program hides the positions of this id.
    out: the folder, which is made.
    scheduler: a fresh scheduler of the optimizer, of torch.optim.lr_scheduler, that steps once after each step of the optimizer.
        docs/how-to/capture.md lists those that a job's schedule has exactly.
    micro_batches: micro-batches of a step, whose gradients are added.
    clip_norm: the greatest norm of a step's gradient.
    convolution: the version of convolutions, as a job's `convolution`.
    digits: digits of each product, 1 to 4, by default 3. Fewer are faster and less exact (docs/ARITHMETIC.md, section 4).
    rounding: the table `[rounding]` of the model's jobs, which are then of the logged profile: {} is the bfloat16 grid, {"bits": 32} that
        of binary32 (docs/ROUNDING.md). By default digits are those of a logged job.

    The run starts from the model's present weights; the model is not changed. Products have the contract's arithmetic, so numbers are not
    PyTorch's to the bit. Dropout draws from the run's seed.

    Raises CaptureError with every operator that has no counterpart: its module, its line, and what to do instead.

    >>> captured = tiebreak.capture(model, torch.nn.CrossEntropyLoss(), optimizer, (inputs, labels), out="captured")
    """
    torch = _torch()
    out = path("out", out)
    micro_batches = count("micro_batches", micro_batches, 1)
    if convolution not in (1, 2):
        raise UsageError(f"convolution is {convolution!r:.60}", "give convolution as 1 or 2")
    if digits is not None and count("digits", digits, 1) > 4:
        raise UsageError(f"digits is {digits}", "give digits as 1, 2, 3 or 4")
    if not isinstance(model, torch.nn.Module) or not callable(loss_fn):
        raise UsageError("model is no nn.Module, or loss_fn cannot be called", "give capture(model, loss_fn, optimizer, (inputs, labels))")
    batch = batch_of(torch, example_batch)
    inputs, labels = batch.inputs, batch.labels
    named = {name: tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    first: Dict[int, str] = {}
    canonical = {name: first.setdefault(id(tensor), name) for name, tensor in named.items()}
    wrong = [f"parameter {name} is {tensor.dtype}: use model.float()" for name, tensor in named.items() if tensor.dtype != torch.float32]
    treatments, rules, rate, refused = _optimizer(torch, optimizer, {name: named[name] for name in first.values()})
    fall, more = _scheduler(scheduler, optimizer)
    shared = _left_out.shared(model, named)
    if wrong or refused or more or shared or batch.refused:
        raise CaptureError([*wrong, *refused, *more, *shared, *batch.refused])
    program = _exported(torch, model, loss_fn, batch)
    if shared := _left_out.shared_constants(program, named):
        raise CaptureError(shared)
    shapes = {name: tuple(named[name].shape) for name in first.values()}
    matcher = _matched(program, inputs, lambda: Matcher(shapes, canonical, convolution))
    if matcher.absent is not None:
        _left_out.tell_counted(matcher.absent)
    if matcher.absent is not None and (matcher.padding is not None or labels.dim() != 1):
        why = f"it counts positions over the ids that are not {matcher.absent}, those of padding"
        raise CaptureError([f"the model: {why}; give an example of texts with one label each, without padding, or number the positions by torch.arange(T)"])
    missing = _left_out.missing_rows(matcher)
    if missing:
        raise CaptureError(missing)
    unused = [name for name in shapes if name not in {part.source for part in matcher.parts.values()}]
    if untrained := [name for name in unused if name in matcher.read]:
        # Their gradients are zeros, and PyTorch's optimizer takes steps by them.
        raise CaptureError([f"parameter {name}: the loss does not depend on it; take it out of the model" for name in untrained])
    if unused:
        _left_out.tell(unused)
    matcher.without_exchanges()
    if untaken := _left_out.untaken(matcher):
        raise CaptureError(untaken)
    network = _network(matcher, inputs, labels, treatments)
    network.update(micro_batches=micro_batches, optimizer=rules)
    if rounding is not None:
        network["grid"] = _grid(rounding)
    if digits is not None or rounding is None:
        network["digits"] = 3 if digits is None else digits
    if clip_norm is not None:
        network["clip_norm"] = float(clip_norm)
    tensors = {name: to_role(_array(named[part.source]), part) for name, part in matcher.parts.items()}
    own, buffers = dict(model.named_buffers(remove_duplicate=False)), dict(matcher.norms)
    tensors.update(matcher.constants)
    tensors.update({f"buffer/{ours}": _array(own[theirs]) for theirs, ours in buffers.items()})
    ties = {name: source for name, source in canonical.items() if name != source}
    kept, more_ties = _left_out.kept(model, buffers)
    kept.update({name: named[name].detach().cpu().clone() for name in unused})
    padding = Padding(matcher.padding, matcher.absent if matcher.absent is not None else _left_out.unpadded(matcher, model) if batch.is_full else None)
    captured = Captured(out, matcher.parts, {**ties, **more_ties}, buffers, rate, network["inputs"], fall, padding, kept, rounding)
    _write(captured, network, tensors, matcher.made_of)
    return captured


def _write(captured: Captured, network: Dict[str, Any], tensors: Dict[str, np.ndarray], made_of: Mapping[str, Any]) -> None:
    """Writes the captured files: network, weights and program. They get their names when all of them are whole."""
    made = not os.path.exists(captured.folder)
    files = {file: f"{file}.part" for file in (captured.weights, captured.program, captured.network)}
    try:
        os.makedirs(captured.folder, exist_ok=True)
        with open(files[captured.network], "w", encoding="ascii") as file:
            json.dump(network, file, indent=1)
            file.write("\n")
        _write_safetensors(files[captured.weights], tensors)
        try:
            result_of(["program", "compile", f"--out={files[captured.program]}", "--", files[captured.network]])
        except (MalformedError, UsageError) as error:
            raise CaptureError([of_network(error.message, files[captured.network], made_of)]) from error
        for file, part in files.items():
            os.replace(part, file)
    except OSError as error:
        raise UndecidedError(f"{captured.folder} cannot be written: {error}", "name another folder") from None
    finally:
        with suppress(OSError):
            for part in files.values():
                if os.path.exists(part):
                    os.remove(part)
            if made:
                # It stays if there are files in it.
                os.rmdir(captured.folder)


def _grid(rounding: Mapping[str, Any]) -> Dict[str, int]:
    """The grid of a table `[rounding]`, whose other keys are for the job alone."""
    if not isinstance(rounding, Mapping):
        raise UsageError(f"rounding is a {type(rounding).__name__}", 'give rounding as a table, such as {} or {"bits": 32}')
    bits = count("rounding.bits", rounding.get("bits", 32 if rounding.get("preset") == "paper" else 16))
    grid = {"bits": bits, "floor": count("rounding.floor", rounding.get("floor", 14 if bits == 16 else 0))}
    if not (grid["floor"] in (0, *range(4, 41)) if bits == 16 else bits in (26, 27, 28, 29, 30, 32) and not grid["floor"]):
        raise UsageError(f"rounding has {bits} bits and a floor of {grid['floor']}", "give 16 bits and a floor of 4 to 40 or none, or 26 to 30 or 32 bits")
    return grid


def _torch() -> Any:
    try:
        import torch
        import torch.export
    except ImportError as error:
        raise UsageError(f"capture needs PyTorch: {error}", "pip install torch, or give tiebreak.train a job") from None
    return torch


def _exported(torch: Any, model: Any, loss_fn: Any, batch: Batch) -> Any:
    """The graph of forward pass and loss, before any decomposition."""

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.loss_fn = loss_fn

        def forward(self, inputs: Any, labels: Any) -> Any:
            if batch.name is None:
                return self.loss_fn(self.model(inputs), labels)
            given = {batch.name: inputs, **batch.constants}
            if batch.padding is not None:
                given["attention_mask"] = (inputs != batch.padding).to(batch.constants["attention_mask"].dtype)
            return self.loss_fn(self.model(**given), labels)

    step, assigned = Step(), _in_place.Assigned(model)
    labels = batch.labels.clone() if batch.labels is batch.inputs else batch.labels
    # The mode of each part of the model stays as it is.
    step.training = model.training
    drawn = _left_out.drawn()
    try:
        with assigned:
            program = torch.export.export(step, (batch.inputs, labels), strict=False)
    except Exception as error:  # noqa: BLE001 - the model is foreign code
        instead = "write forward so that no branch and no shape depends on the values of tensors"
        raise CaptureError([f"torch.export could not trace it: {type(error).__name__}: {' '.join(str(error).split())[:500]}; {instead}"]) from error
    if drawn != _left_out.drawn():
        instead = "each step of a run would have the same draw; use torch.nn.Dropout, or leave the layers that are drawn in or out"
        raise CaptureError([f"the model: forward or loss_fn draws numbers by Python's random or NumPy; {instead}"])
    named_once(program.graph)
    if assigned.found:
        instead = "a run keeps parameters and running averages alone, so leave it as it is in forward"
        raise CaptureError([f"{name}: forward assigns it; {instead}" for name in dict.fromkeys(assigned.found)])
    return program


def _matched(program: Any, inputs: Any, made: Callable[[], Matcher]) -> Matcher:
    """The graph of a step as a network."""
    signature = program.graph_signature
    inputs_of, labels_of = signature.user_inputs

    def fresh() -> Matcher:
        matcher = made()
        matcher.batch = inputs.shape[0]
        matcher.buffers = {name: full[len("model.") :] for name, full in signature.inputs_to_buffers.items()}
        matcher.writes = _in_place.Writes(program.graph, lambda node: node.op == "placeholder" and node.name not in signature.user_inputs)
        return matcher

    def placeholder(matcher: Matcher, node: Any) -> Any:
        if any(user in matcher.writes.order for user in node.users):
            matcher.read.add(matcher.canonical.get((signature.inputs_to_parameters.get(node.name) or "")[len("model.") :]))
        return _placeholder(matcher, program, node, inputs_of, labels_of, inputs)

    def ended(_: Matcher, node: Any, values: Dict[Any, Any]) -> List[str]:
        last = values.get(node.args[0][0]) if len(node.args[0]) == 1 else None
        if last is not BROKEN and not (isinstance(last, Value) and last.layout == "loss"):
            return ["the loss: loss_fn must return one cross entropy alone; use torch.nn.CrossEntropyLoss()"]
        return []

    return matched(program, fresh, placeholder, ended)


def _placeholder(matcher: Matcher, program: Any, node: Any, inputs_of: str, labels_of: str, inputs: Any) -> Any:
    signature = program.graph_signature
    shape = tuple(getattr(node.meta.get("val"), "shape", ()))
    if node.name == inputs_of:
        return Value(None, "raw" if inputs.is_floating_point() else "tokens", shape)
    if node.name == labels_of:
        return Value(None, "labels", shape)
    name = signature.inputs_to_parameters.get(node.name)
    if name is not None and name.startswith("model."):
        return Value(matcher.canonical[name[len("model.") :]], "parameter", shape)
    name = signature.inputs_to_buffers.get(node.name) or signature.inputs_to_lifted_tensor_constants.get(node.name)
    tensor = program.state_dict.get(name, program.constants.get(name))
    if tensor is None:
        return Value(name, "unknown", shape)
    return Value(tensor.detach().cpu(), "constant", shape)


def _optimizer(torch: Any, optimizer: Any, named: Dict[str, Any]) -> Tuple[Dict[str, dict], dict, float, List[str]]:
    """How each parameter is trained, the network's `optimizer`, the learning rate, and what is refused."""
    kinds = {torch.optim.AdamW: ("adamw", "decoupled"), torch.optim.Adam: ("adamw", "coupled"), torch.optim.SGD: ("sgd", "coupled")}
    if type(optimizer) not in kinds:
        known = ", ".join(kind.__name__ for kind in kinds)
        return {}, {}, 0.0, [f"the optimizer is a {type(optimizer).__name__}: use torch.optim's {known}"]
    kind, decay = kinds[type(optimizer)]
    refused: List[str] = []
    if any(optimizer.state.values()):
        refused.append("the optimizer has taken steps: a run begins with fresh moments; make a new optimizer")
    due = {"maximize": False, "amsgrad": False, "nesterov": False, "dampening": 0, "differentiable": False}
    for number, group in enumerate(optimizer.param_groups):
        wrong = [key for key, value in due.items() if group.get(key, value) != value]
        refused += [f"parameter group {number}: {key} is {group[key]!r:.40}, and only {due[key]!r} is there" for key in wrong]
    numbers = ("betas", "eps") if kind == "adamw" else ("momentum",)
    first, others = optimizer.param_groups[0], optimizer.param_groups[1:]
    for key in numbers:
        if any(group[key] != first[key] for group in others):
            refused.append(f"parameter groups have several {key}: a program has one; use groups that differ in lr and weight_decay alone")
    decoupled = decay == "decoupled"
    if any(group.get("decoupled_weight_decay", decoupled) != decoupled for group in optimizer.param_groups):
        refused.append(f"decoupled_weight_decay is {not decoupled}: use AdamW or Adam as they come")
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    rate = next((value for value in rates if value > 0), 0.0)
    if rate == 0 or not all(math.isfinite(value) and value >= 0 for value in rates):
        refused.append(f"the learning rates are {rates}: give one above 0")
    names = {id(tensor): name for name, tensor in named.items()}
    treatments: Dict[str, dict] = {name: {"frozen": True} for name in named}
    for group, value in zip(optimizer.param_groups, rates):
        for tensor in group["params"]:
            name = names.get(id(tensor))
            if name is None:
                refused.append("the optimizer has a tensor that is no parameter of the model: give it model.parameters()")
            elif tensor.requires_grad:
                treatments[name] = {"weight_decay": float(group["weight_decay"]), "rate_factor": value / rate if rate else 1.0}
    if kind == "adamw":
        beta1, beta2 = (float(beta) for beta in first["betas"])
        rules = {"kind": kind, "beta1": beta1, "beta2": beta2, "epsilon": float(first["eps"]), "decay": decay}
    else:
        rules = {"kind": kind, "momentum": float(first["momentum"]), "decay": decay}
    return treatments, rules, rate, refused


def _scheduler(scheduler: Any, optimizer: Any) -> Tuple[Optional[Fall], List[str]]:
    """What a scheduler does, if there is one, and what is refused."""
    if scheduler is not None:
        return read(scheduler, optimizer)
    if any("initial_lr" in group for group in getattr(optimizer, "param_groups", ())):
        return None, ["a scheduler changes the optimizer's learning rate: give it as scheduler=, or make a new optimizer"]
    return None, []


def _network(matcher: Matcher, inputs: Any, labels: Any, treatments: Dict[str, dict]) -> Dict[str, Any]:
    """The network file's keys that follow from the model."""
    parameters = []
    # The order is that of their first use.
    for name, part in matcher.parts.items():
        shape = list(to_role(np.broadcast_to(np.float32(0), matcher.shapes[part.source]), part).shape)
        parameters.append({"name": name, "shape": shape, **treatments[part.source]})
    parameters += [{"name": name, "shape": list(array.shape), "frozen": True} for name, array in matcher.constants.items()]
    batch: Dict[str, Any] = {"name": "values", "shape": matcher.input_shape}
    if not inputs.is_floating_point():
        # Texts with one label each are whole samples, and others windows of a text.
        name, shape = ("ids", list(inputs.shape)) if labels.dim() == 1 else ("tokens", matcher.input_shape)
        batch = {"name": name, "shape": shape, "below": matcher.input_below}
    network: Dict[str, Any] = {
        "format": "tiebreak network 1",
        "micro_batch": inputs.shape[0],
        "inputs": batch,
        "labels": {"shape": [labels.numel()], "below": matcher.classes},
        "parameters": parameters,
        "nodes": matcher.nodes,
    }
    if matcher.loss:
        network["loss"] = matcher.loss
    if matcher.momentum is not None:
        network["norm_momentum"] = matcher.momentum
    return network


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _write_safetensors(file: str, tensors: Dict[str, np.ndarray]) -> None:
    """Writes tensors of binary32 in the format of safetensors, one at a time."""
    header: Dict[str, Any] = {}
    place = 0
    for name, array in tensors.items():
        end = place + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            out.write(np.ascontiguousarray(array, dtype="<f4").tobytes())
