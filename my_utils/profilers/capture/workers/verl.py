"""Converts configurations of verl's trainers for `ProfileManager`.

verl has `global_profiler` for the run and a `profiler` in each role. Its files refer to other
fields by OmegaConf's `${oc.select:path,default}` and `${path}`, which are resolved here, so that a
file can be read without OmegaConf.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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

_TOOLS = ("nsys", "torch", "torch_memory")
_NOT_OURS = ("npu", "precision_debugger")
_CONTENTS = {"memory": "profile_memory", "shapes": "record_shapes", "stack": "with_stack",
             "module": "with_modules"}  # fmt: skip
_ACTIVITIES = ("cpu", "cuda")
# What has no counterpart, and what it is where nobody has set it.
_LEFT_OUT = ("relocate_results",)
_LEFT_OUT_OF_TOOLS = ("profile_token_start", "profile_token_end")
_HOOK = ("finish_hook_cmd", "finish_hook_all_ranks", "finish_hook_ranks")
_SCHEDULE = ("skip_first", "wait", "warmup", "active", "repeat")
_WITHOUT_MINI_BATCHES = ("rollout", "ref")  # a schedule counts those of updates
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,(.*))?\}", re.DOTALL)
_DEPTH_MAX = 20

_logger = logging.getLogger("my_utils")


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
    known = FUNCTIONS if functions is None else functions
    return _Translation(run, profilers, known, source).config()


def _profilers(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The profiler of each role, wherever the roles are."""
    for name, value in data.items():
        if not isinstance(value, dict) or name in ("global_profiler", "profiler"):
            continue
        if isinstance(value.get("profiler"), dict):
            yield name, value["profiler"]
        yield from _profilers(value)


class _Translation:
    def __init__(
        self,
        run: dict[str, Any],
        profilers: dict[str, dict[str, Any]],
        functions: Mapping[str, Sequence[str]],
        source: str,
    ) -> None:
        self.run = run
        self.profilers = profilers
        self.functions = functions
        self.source = source
        self.left_out: list[str] = []

    def config(self) -> dict[str, Any]:
        tool = self._tool()
        roles = {
            name: self._role(name, profiler, tool)
            for name, profiler in self._in_order()
            if self._captures(name, profiler)
        }
        self._note_left_out("global_profiler", self.run, _LEFT_OUT)
        common = _part(self.run, "global_tool_config", tool)
        self._note_left_out("global_tool_config", common, _LEFT_OUT_OF_TOOLS)
        in_a_row = bool(self.run.get("profile_continuous_steps"))
        if in_a_row and any("micro_batches" in role for role in roles.values()):
            in_a_row = False
            self.left_out.append("global_profiler.profile_continuous_steps beside a schedule")
        found = {
            "enable": tool is not None,
            "tool": tool or "none",
            "output_dir": self.run.get("save_path") or "profiles",
            "steps": self.run.get("steps"),
            "continuous_steps": in_a_row,
            "options": self._options(tool, [self.profilers[name] for name in roles]),
            "finish": self._finish([*roles]),
            "roles": roles,
        }
        if self.left_out:
            text = f"verl's {', '.join(self.left_out)} have no counterpart here and are left out"
            warn_once(f"from_verl:{text}", text)
        return found

    def _tool(self) -> str | None:
        tool = self.run.get("tool")
        if tool in _NOT_OURS:
            message = f"unknown tool {tool} here; there are {', '.join(_TOOLS)}"
            raise ConfigError(message, "global_profiler.tool", source=self.source)
        return tool

    # --- roles ---

    def _in_order(self) -> list[tuple[str, dict[str, Any]]]:
        """In the order in which the roles work in a step, as in `functions`."""
        order = [*self.functions]
        place = {
            name: order.index(name) if name in order else len(order) for name in self.profilers
        }
        return sorted(self.profilers.items(), key=lambda item: place[item[0]])

    def _captures(self, name: str, profiler: dict[str, Any]) -> bool:
        """verl captures no rank where none is named."""
        if not profiler.get("enable"):
            return False
        if not profiler.get("all_ranks") and not profiler.get("ranks"):
            text = f"verl's role {name} is enabled and names no rank; it is left out"
            warn_once(f"from_verl:{name}", text)
            return False
        return True

    def _role(self, name: str, profiler: dict[str, Any], tool: str | None) -> dict[str, Any]:
        self._note_left_out(name, profiler, _LEFT_OUT)
        own = _part(profiler, "tool_config", tool)
        common = _part(self.run, "global_tool_config", tool)
        self._note_left_out(f"{name}.tool_config", own, _LEFT_OUT_OF_TOOLS)
        discrete = own.get("discrete")
        role: dict[str, Any] = {
            "functions": [*self.functions.get(name, (name,))],
            "discrete": bool(common.get("discrete") if discrete is None else discrete),
        }
        schedule = own.get("schedule") or common.get("schedule") or {}
        fields = {key: schedule[key] for key in _SCHEDULE if schedule.get(key) is not None}
        if tool == "torch" and name not in _WITHOUT_MINI_BATCHES and fields.get("active", 0) > 0:
            role |= {"micro_batches": fields, "discrete": False}
        if profiler.get("all_ranks"):
            return {**role, "all_ranks": True}
        return {**role, "ranks": profiler["ranks"]}

    # --- the hook ---

    def _finish(self, names: Sequence[str]) -> dict[str, Any] | None:
        """A role's hook is the run's where it sets none. The first one is taken."""
        chosen: dict[str, Any] | None = None
        for name in names:
            profiler = self.profilers[name]
            hook = {field: profiler.get(field) or self.run.get(field) for field in _HOOK}
            if chosen is None and hook["finish_hook_cmd"]:
                chosen = hook
            elif hook != chosen and hook["finish_hook_cmd"]:
                self.left_out.append(f"{name}.finish_hook_cmd")
        if chosen is None:
            return None
        command, all_ranks, ranks = (chosen[field] for field in _HOOK)
        if all_ranks or not ranks:
            return {"command": command, "all_ranks": bool(all_ranks)}
        return {"command": command, "ranks": ranks}

    # --- options ---

    def _options(
        self, tool: str | None, profilers: list[dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """What any of the captured roles asks for: windows of a run have the same options."""
        parts = [_part(profiler, "tool_config", tool) for profiler in profilers]
        if tool == "torch":
            contents = {one for part in parts for one in part.get("contents") or ()}
            options: dict[str, Any] = {
                ours: True for theirs, ours in _CONTENTS.items() if theirs in contents
            }
            activities = [one for one in _ACTIVITIES if one in contents]
            if "cuda" in activities:
                options["activities"] = [*_ACTIVITIES]  # verl always has the CPU's
            elif activities:
                options["activities"] = activities
            return {"torch": options} if options else {}
        if tool == "torch_memory":
            entries = [part.get("trace_alloc_max_entries") for part in parts]
            entries.append(
                _part(self.run, "global_tool_config", tool).get("trace_alloc_max_entries")
            )
            most = max((int(one) for one in entries if one), default=0)
            return {"torch_memory": {"max_entries": most}} if most else {}
        return {}

    def _note_left_out(self, place: str, data: dict[str, Any], names: Sequence[str]) -> None:
        self.left_out += [f"{place}.{name}" for name in names if data.get(name)]


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
