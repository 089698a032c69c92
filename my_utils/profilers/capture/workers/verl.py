"""Converts configurations of verl's trainers for `ProfileManager`.

verl has `global_profiler` for the run and a `profiler` in each role. Its files refer to other
fields by OmegaConf's `${oc.select:path,default}` and `${path}`, which are resolved here, so that a
file can be read without OmegaConf.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....core.extras import require
from ....core.warnings import warn_once
from .config import ConfigError, read_data

# What verl calls the tasks of its roles, in the order of a step.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "rollout": ("rollout_generate",),
    "ref": ("ref_compute_log_prob",),
    "critic": ("critic_compute_values", "critic_update"),
    "actor": ("actor_compute_log_prob", "actor_update"),
}

# By the names of verl: ours, and None for what has no counterpart. Fields of the run,
RUN = {
    "save_path": "output_dir",
    "profile_continuous_steps": "continuous_steps",
    "relocate_results": None,
}
# of the hook, which the run and each role may have,
HOOK = {"finish_hook_cmd": "command", "finish_hook_all_ranks": "all_ranks",
        "finish_hook_ranks": "ranks"}  # fmt: skip
# of a role,
ROLE = {"all_ranks": "all_ranks", "ranks": "ranks", "relocate_results": None}
# of a role's tool,
TOOL = {"profile_token_start": None, "profile_token_end": None}
# and what torch's profiler records.
CONTENTS = {"memory": "profile_memory", "shapes": "record_shapes", "stack": "with_stack",
            "module": "with_modules"}  # fmt: skip
ACTIVITIES = {"cpu": ["cpu"], "cuda": ["cpu", "cuda"]}  # the last one counts

_TOOLS = ("nsys", "torch", "torch_memory")
_NOT_OURS = ("npu", "precision_debugger")
_SCHEDULE = ("skip_first", "wait", "warmup", "active", "repeat")
_WITHOUT_MINI_BATCHES = ("rollout", "ref")  # a schedule counts those of updates
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,(.*))?\}", re.DOTALL)
_DEPTH_MAX = 20


def config_of_verl(
    config: Mapping[str, Any] | str | os.PathLike[str],
    functions: Mapping[str, Sequence[str]] | None,
) -> dict[str, Any]:
    """The same in the fields of `ProfileManager`. ConfigError names what cannot be had."""
    data, source, _ = read_data(config)
    if not isinstance(data, dict):
        raise ConfigError(f"must be a mapping, not {type(data).__name__}", source=source)
    data = _resolved(data, data)
    run = data.get("global_profiler")
    profilers = dict(_profilers(data))
    if run is None and not profilers and "tool" in data:  # a role's profiler alone
        run, profilers = data, {"worker": data}
    if not isinstance(run, dict):
        raise ConfigError("this field is needed", "global_profiler", source=source)
    tool = run.get("tool")
    if tool in _NOT_OURS:
        message = f"unknown tool {tool} here; there are {', '.join(_TOOLS)}"
        raise ConfigError(message, "global_profiler.tool", source=source)
    known = FUNCTIONS if functions is None else functions
    return _Translation(run, profilers, known, tool).config()


def _profilers(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The profiler of each role, wherever the roles are."""
    for name, value in data.items():
        if not isinstance(value, dict) or name in ("global_profiler", "profiler"):
            continue
        if isinstance(value.get("profiler"), dict):
            yield name, value["profiler"]
        yield from _profilers(value)


@dataclass
class _Translation:
    run: dict[str, Any]
    profilers: dict[str, dict[str, Any]]
    functions: Mapping[str, Sequence[str]]
    tool: str | None
    left_out: list[str] = field(default_factory=list)

    def config(self) -> dict[str, Any]:
        common = _part(self.run, "global_tool_config", self.tool)
        roles = {
            name: self._role(name, profiler, common)
            for name, profiler in sorted(self.profilers.items(), key=self._place)
            if _captures(name, profiler)
        }
        found = {
            "enable": self.tool is not None,
            "tool": self.tool or "none",
            "steps": self.run.get("steps"),
            **self._renamed("global_profiler", self.run, RUN),
            "options": self._options([*roles], common),
            "finish": self._finish([*roles]),
            "roles": roles,
        }
        self._renamed("global_tool_config", common, TOOL)
        scheduled = any("micro_batches" in role for role in roles.values())
        if scheduled and found.pop("continuous_steps", False):
            self.left_out.append("global_profiler.profile_continuous_steps beside a schedule")
        if self.left_out:
            text = f"verl's {', '.join(self.left_out)} have no counterpart here and are left out"
            warn_once(f"from_verl:{text}", text)
        return found

    def _renamed(
        self, place: str, data: dict[str, Any], names: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """The fields that are set, by their names here; all ranks go before some."""
        given = {name: data[name] for name in names if data.get(name)}
        self.left_out += [f"{place}.{name}" for name in given if names[name] is None]
        found = {ours: given[name] for name in given if (ours := names[name]) is not None}
        if "all_ranks" in found:
            found.pop("ranks", None)
        return found

    def _place(self, item: tuple[str, object]) -> int:
        """In the order in which the roles work in a step, as in `functions`."""
        order = [*self.functions]
        return order.index(item[0]) if item[0] in order else len(order)

    def _role(self, name: str, profiler: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
        own = _part(profiler, "tool_config", self.tool)
        discrete = own.get("discrete")
        role: dict[str, Any] = {
            "functions": [*self.functions.get(name, (name,))],
            "discrete": bool(common.get("discrete") if discrete is None else discrete),
            **self._renamed(name, profiler, ROLE),
            **self._renamed(f"{name}.tool_config", own, TOOL),
        }
        schedule = own.get("schedule") or common.get("schedule") or {}
        fields = {key: schedule[key] for key in _SCHEDULE if schedule.get(key) is not None}
        has_mini_batches = self.tool == "torch" and name not in _WITHOUT_MINI_BATCHES
        if has_mini_batches and fields.get("active", 0) > 0:
            role |= {"micro_batches": fields, "discrete": False}
        return role

    def _finish(self, names: Sequence[str]) -> dict[str, Any] | None:
        """A role's hook is the run's where it sets none. The first one is taken."""
        hooks = {
            name: {one: self.profilers[name].get(one) or self.run.get(one) for one in HOOK}
            for name in names
        }
        chosen: dict[str, Any] | None = None
        for name, hook in hooks.items():
            if chosen is None and hook["finish_hook_cmd"]:
                chosen = hook
            elif hook != chosen and hook["finish_hook_cmd"]:
                self.left_out.append(f"{name}.finish_hook_cmd")
        return None if chosen is None else self._renamed("", chosen, HOOK)

    def _options(self, names: Sequence[str], common: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What any of the captured roles asks for: windows of a run have the same options."""
        parts = [_part(self.profilers[name], "tool_config", self.tool) for name in names]
        options: dict[str, Any] = {}
        if self.tool == "torch":
            contents = {one for part in parts for one in part.get("contents") or ()}
            options = {ours: True for theirs, ours in CONTENTS.items() if theirs in contents}
            activities = [ours for theirs, ours in ACTIVITIES.items() if theirs in contents]
            if activities:
                options["activities"] = activities[-1]
        elif self.tool == "torch_memory":
            entries = [part.get("trace_alloc_max_entries") for part in (*parts, common)]
            if most := max((int(one) for one in entries if one), default=0):
                options["max_entries"] = most
        return {self.tool: options} if self.tool and options else {}


def _captures(name: str, profiler: dict[str, Any]) -> bool:
    """verl captures no rank where none is named."""
    if not profiler.get("enable"):
        return False
    if not profiler.get("all_ranks") and not profiler.get("ranks"):
        text = f"verl's role {name} is enabled and names no rank; it is left out"
        warn_once(f"from_verl:{name}", text)
        return False
    return True


def _part(data: dict[str, Any], field: str, tool: str | None) -> dict[str, Any]:
    tools = data.get(field)
    part = tools.get(tool) if isinstance(tools, dict) and tool is not None else None
    return part if isinstance(part, dict) else {}


# --- references ---


def _resolved(value: Any, root: dict[str, Any], depth: int = 0) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, root, depth) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, root, depth) for item in value]
    if not isinstance(value, str) or depth > _DEPTH_MAX:
        return value
    found = _REFERENCE.fullmatch(value.strip())
    if found is None:
        return value
    path, default = found.groups()
    target = _at(root, path)
    if target is None:
        target = None if default is None else _literal(default)
    return _resolved(target, root, depth + 1)


def _at(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = root.get(name) if isinstance(root, dict) else None
    return root


def _literal(text: str) -> Any:
    """A default such as `null`, `false`, `[]` or `100000`."""
    if "${" in text:
        return text.strip()
    return require("yaml", "a configuration of verl").safe_load(text)
