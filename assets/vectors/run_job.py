"""The canonical job: what of a job file decides the bytes of a run's records (docs/RUN-FORMAT.md, "Computation and run")."""

import re
import struct


def pattern(number):
    """A number's binary32 pattern; Python rounds a numeral to binary64, and `struct` that to binary32."""
    return struct.unpack("<I", struct.pack("<f", number))[0]


def endings(paths):
    def ending(path):
        path = path.removesuffix(".gz")
        return "npy" if path.endswith(".npy") else "safetensors" if path.endswith(".safetensors") else "raw"

    return " ".join(ending(path) for path in paths)


def data_paths(data):
    """The paths of the job's data files, in the run's order."""
    if "images" in data:
        return [data["images"], data["labels"]]
    if "inputs" in data:
        return list(dict.fromkeys([data["inputs"], data["labels"]]))
    listed = lambda many, one: [data[one]] if isinstance(data.get(one), str) else data.get(many, data.get(one, []))
    return listed("paths", "path") + listed("masks", "mask")


def mask_paths(data):
    """The masks among the paths of the job's data files, which are behind the files of tokens."""
    paths = data_paths(data)
    return paths[len(paths) // 2 :] if "mask" in data or data.get("masks") else []


def data_settings(job):
    data = job["data"]
    settings = {"data.kind": data["kind"], "data.sampling": data.get("sampling", "permutation")}
    settings |= {f"data.augment.{key}": str(value).lower() for key, value in data.get("augment", {}).items() if value}
    settings |= {f"data.{key}": f"{pattern(data[key]):08x}" for key in ("validation_split",) if key in data}
    if data["kind"] == "cifar100":
        settings["data.labels"] = data["labels"]
    if data["kind"] in ("tokens", "arrays"):
        settings["data.dtype"] = data["dtype"]
    if data["kind"] == "tokens":
        masks = mask_paths(data)
        paths = data_paths(data)
        settings["data.formats"] = endings(paths[: len(paths) - len(masks)])
        if masks:
            settings["data.masks"] = endings(masks)
            settings["data.uncounted"] = str(job["loss"]["ignore"])
        if data.get("windows") == "separate":
            settings["data.windows"] = "separate"
    if data["kind"] == "arrays":
        settings["data.formats"] = endings([data["inputs"], data["labels"]])
        settings["data.one_file"] = str(data["inputs"] == data["labels"]).lower()
        settings |= {f"data.{key}": data[key] for key in ("inputs_tensor", "labels_tensor") if key in data}
    return settings


def rounding_settings(rounding):
    paper = rounding.get("preset") == "paper"
    bits = rounding.get("bits", 32 if paper else 16)
    settings = {"rounding.preset": "paper" if paper else "default", "rounding.bits": bits}
    settings["rounding.floor"] = rounding.get("floor", 14 if bits == 16 else 0)
    if "threshold" in rounding:
        settings["rounding.threshold"] = rounding["threshold"]
    return settings | {f"rounding.class.{name}": value for name, value in rounding.get("class", {}).items()}


def drawn(job, program):
    """The state tensors that the job draws though it begins from weights, in the state's order: `*` in a name stands for any characters."""
    patterns = [".*".join(map(re.escape, pattern.split("*"))) for pattern in job.get("init", {}).get("reinitialize", [])]
    init = job.get("init", {})
    if "lora" in job.get("model", {}) and init.get("weights") and init.get("names") == "hf" and "adapter" not in init:
        patterns += [r".*\.lora_[ab]"]
    if not patterns:
        return []
    names = [name for name, _ in program.state() if name.startswith(("param/", "buffer/"))]
    return [name for name in names if any(re.fullmatch(pattern, name.split("/", 1)[1], re.DOTALL) for pattern in patterns)]


def with_frozen(path, program, read, may_lack):
    """The tensors of a checkpoint, with the frozen parameters of checkpoint 0 if it leaves them out, which only some may."""
    tensors = read(path)
    frozen = {f"param/{name}" for name, _, _, is_frozen in program.parameters if is_frozen}
    if not may_lack or not frozen or frozen & {name for name, _, _ in tensors}:
        return tensors
    first = read(path.with_name("step-000000000.safetensors"))
    held = {tensor[0]: tensor for tensor in tensors} | {tensor[0]: tensor for tensor in first if tensor[0] in frozen}
    return [held[name] for name, _, _ in first if name in held]


def canonical_job(job, program):
    """The settings that decide the bytes of records: texts by their keys."""
    schedule = job["schedule"]
    settings = data_settings(job) | {
        "commit.granularity": job.get("commit", {}).get("granularity", "microbatch"),
        "commit.scheme": job.get("commit", {}).get("scheme", 0),
        "schedule.peak": f"{pattern(schedule['peak']):08x}",
        "schedule.warmup": schedule.get("warmup", 0),
        "seed": job.get("seed", 0),
        "steps": job["steps"],
    }
    kind = schedule.get("kind", "cosine" if "floor" in schedule else "constant")
    if kind in ("linear", "cosine"):
        settings["schedule.floor"] = f"{pattern(schedule.get('floor', 0.0)):08x}"
    if kind in ("linear", "step"):
        settings["schedule.kind"] = kind
    if "gamma" in schedule:
        settings["schedule.gamma"] = f"{pattern(schedule['gamma']):08x}"
    if "every" in schedule:
        settings["schedule.every"] = str(schedule["every"])
    if "milestones" in schedule:
        settings["schedule.milestones"] = " ".join(str(m) for m in schedule["milestones"])
    if redrawn := drawn(job, program):
        settings["init.reinitialize"] = " ".join(redrawn)
    if "rounding" in job:
        settings |= rounding_settings(job["rounding"])
    return {key: str(value) for key, value in settings.items()}
