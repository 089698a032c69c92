"""The configuration of `ProfileManager`: its schema, and errors that name the field and the line.

A configuration is a rule by which windows are made, and is read into one `Plan`, which a pickled
manager holds. From there to the engine a window has two shapes: see `capture/spec.py`.

Importing this needs msgspec; reading YAML needs pyyaml.
"""

from __future__ import annotations

import itertools
import numbers
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from ....core.extras import require
from ....core.public import public
from ....core.ranges import step_slice
from ....core.trusted_open import open_filled_or_pipe
from ..backends import TOOLS, make_backend
from .steps import Steps, is_endless, ranks_together

TEXT_MAX = 1 << 20  # characters
VALUES_MAX = 100_000

_Path = tuple[str | int, ...]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


@public("my_utils.profiling.ProfileManager")
class ConfigError(ValueError):
    """A configuration that cannot be used. `field` names what is wrong, and `line` where it is in a
    YAML file, from 1; None if there is none."""

    def __init__(self, message: str, field: str = "", line: int | None = None, source: str = ""):
        self.field = field
        self.line = line
        place = source if line is None else f"{source}, line {line}"
        super().__init__(": ".join(part for part in (place, field, message) if part))


# --- the schema ---


class _StepsSchema(msgspec.Struct, forbid_unknown_fields=True):
    every: Annotated[int, msgspec.Meta(ge=1)] | None = None
    first: _Number | None = None
    last: _Number | None = None


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Micro-batches in groups, by the fields of `torch.profiler.schedule`; `repeat` 0: up to the
    last.

    >>> Schedule(skip_first=1, wait=1, warmup=1, active=3, repeat=2).groups(12)
    [(3, 5), (8, 10)]
    """

    active: Annotated[int, msgspec.Meta(ge=1)]
    skip_first: _Number = 0
    wait: _Number = 0
    warmup: _Number = 0
    repeat: _Number = 0

    def groups(self, count: int) -> list[tuple[int, int]]:
        """The first and the last of each group, of `count` micro-batches."""
        lead = self.wait + self.warmup
        firsts = range(self.skip_first + lead, count, lead + self.active)
        chosen = firsts[: self.repeat] if self.repeat else firsts
        return [(first, min(first + self.active, count) - 1) for first in chosen]


# What verl calls otherwise, and where that is here.
_OF_VERL = {
    "global_profiler": "the top of the file",
    "save_path": "output_dir",
    "profile_continuous_steps": "continuous_steps",
    "global_tool_config": "options",
    "tool_config": "options",
    "finish_hook_cmd": "finish.command",
    "finish_hook_ranks": "finish.ranks",
    "finish_hook_all_ranks": "finish.all_ranks",
    "schedule": "micro_batches",
}

_OF_PROFILE = (
    "its fields are at the top here: enabled is enable, capture.schedule.steps is steps, and "
    "capture.windows are roles: {role: {functions: start_profile_names, ranks: ranks_filter, "
    "micro_batches: [start_mb_selector]}}; CaptureController.arm() takes a window with its own stop"
)

_Step = _Number | str | _StepsSchema
_Ranks = Annotated[list[_Number], msgspec.Meta(min_length=1)]
_MicroBatches = list[_Number | Literal["first", "last"]] | Schedule


class _RoleSchema(msgspec.Struct, forbid_unknown_fields=True):
    functions: Annotated[list[_Name], msgspec.Meta(min_length=1)]
    enable: bool = True
    ranks: _Ranks | None = None
    all_ranks: bool = False
    discrete: bool | None = None
    micro_batches: _MicroBatches | None = None


class Finish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shell command that workers run once, after the last captured step. In a plan `ranks` None
    stands for all."""

    command: _Name
    ranks: _Ranks | None = None
    all_ranks: bool = False


class _Schema(msgspec.Struct, forbid_unknown_fields=True):
    enable: bool = True
    tool: str | list[str] = "nsys"
    output_dir: str = "profiles"
    options: dict[str, dict[str, Any]] = {}
    steps: _Step | list[_Step] | None = None
    continuous_steps: bool = False
    discrete: bool = False
    micro_batches: _MicroBatches | None = None
    nvtx: bool | str = False
    finish: Finish | None = None
    roles: dict[str, Any] = {}


# --- what is made of it ---


@dataclass(frozen=True)
class Role:
    """One role that is captured. `ranks`, `micro_batches` None: all. `schedule`: of these."""

    name: str
    functions: tuple[str, ...]
    ranks: tuple[int, ...] | None
    discrete: bool
    micro_batches: list[int | Literal["first", "last"]] | None
    schedule: Schedule | None


@dataclass(frozen=True)
class Plan:
    """A configuration, checked; `roles` holds those that are enabled, in the order of a step."""

    enabled: bool
    backend: dict[str, Any]
    steps: tuple[Steps, ...]
    continuous: bool
    nvtx: bool | str
    roles: tuple[Role, ...]
    finish: Finish | None = None

    @property
    def last_step(self) -> int | None:
        """The last chosen one; None for no end."""
        ends = [steps.last_chosen for steps in self.steps if steps.last_chosen is not None]
        return max(ends, default=None) if len(ends) == len(self.steps) else None


def read_plan(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> Plan:
    """The plan of a mapping, of a YAML file by its path, or of YAML itself, which is a str of more
    than one line; None is an empty one."""
    return _Reader(*read_data(config)).plan()


def read_data(
    config: Mapping[str, Any] | str | os.PathLike[str] | None,
) -> tuple[Any, str, dict[_Path, int]]:
    """What a configuration holds, where it comes from, and the lines of its fields."""
    if config is None:
        return {}, "", {}
    if isinstance(config, Mapping):
        return _plain(config), "", {}
    if not isinstance(config, str | os.PathLike):
        raise TypeError(f"config must be a path, a mapping or None, not {config!r:.100}")
    if isinstance(config, str) and "\n" in config:
        source, text = "the configuration", config
    else:
        source = os.fspath(config)
        with open(config, encoding="utf-8", opener=open_filled_or_pipe) as file:
            text = file.read(TEXT_MAX + 1)
        if len(text) > TEXT_MAX:
            raise ConfigError(f"has more than {TEXT_MAX} characters", "", None, source)
    data, lines = _read_yaml(text, source)
    return data, source, lines


def _plain(value: Any) -> Any:
    """Dicts, lists and ints only, whatever mappings and numbers a configuration library has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return operator.index(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


class _Reader:
    """Checks one configuration. `lines` has the line of each field, where it comes from a file."""

    def __init__(self, data: Any, source: str, lines: dict[_Path, int]) -> None:
        self.data = data
        self.source = source
        self.lines = lines

    def wrong(self, path: _Path, message: str) -> ConfigError:
        line = next((self.lines[path[:n]] for n in range(len(path), -1, -1)
                     if path[:n] in self.lines), None)  # fmt: skip
        return ConfigError(message, _field(path), line, self.source)

    def convert(self, value: Any, schema: type[Any], at: _Path = ()) -> Any:
        try:
            return msgspec.convert(value, schema)
        except msgspec.ValidationError as error:
            path, message = _split_message(str(error))
            raise self.wrong((*at, *path), message) from None

    def plan(self) -> Plan:
        if not isinstance(self.data, dict):
            raise self.wrong((), f"must be a mapping, not {type(self.data).__name__}")
        for key in self.data:
            if not isinstance(key, str):
                raise self.wrong((), f"fields have names, not {key!r:.100}")
        self._check_names_of_verl()
        schema = self.convert(self.data, _Schema)
        roles = tuple(self._roles(schema))
        plan = Plan(
            schema.enable,
            self._backend(schema),
            tuple(self._steps(schema.steps)),
            schema.continuous_steps,
            schema.nvtx,
            roles,
            self._finish(schema.finish, roles),
        )
        if plan.continuous:
            self._check_continuous(plan)
        if plan.finish is not None and plan.steps and plan.last_step is None:
            raise self.wrong(("finish",), "it runs after the last step, and steps have no 'last'")
        return plan

    def _finish(self, schema: Finish | None, roles: Sequence[Role]) -> Finish | None:
        if schema is None:
            return None
        self._check_ranks(schema, ("finish",))
        if schema.all_ranks:
            return Finish(schema.command, None)
        return Finish(schema.command, schema.ranks or ranks_together(role.ranks for role in roles))

    def _check_ranks(self, schema: _RoleSchema | Finish, at: _Path) -> None:
        if schema.all_ranks and schema.ranks is not None:
            raise self.wrong((*at, "ranks"), "give ranks or all_ranks, not both")

    def _check_names_of_verl(self) -> None:
        """One error for all fields that verl calls otherwise, with their names here."""
        found: list[tuple[_Path, str]] = [
            ((name,), f"{name} is {ours} here") for name, ours in _OF_VERL.items()
            if name in self.data
        ]  # fmt: skip
        if "profile" in self.data:
            raise self.wrong(("profile",), _OF_PROFILE)
        tools = self.data.get("tool", "none")
        for tool in tools if isinstance(tools, list) else [tools]:
            if tool is None:
                found.append((("tool",), "tool: null is enable: false here"))
            elif tool in ("npu", "precision_debugger"):
                found.append((("tool",), f"tool {tool} is not there; ours are {', '.join(TOOLS)}"))
        roles = self.data.get("roles")
        for role, value in roles.items() if isinstance(roles, dict) else ():
            for name in ("tool_config", "save_path"):
                if isinstance(value, dict) and name in value:
                    found.append((("roles", role, name), f"{name} is {_OF_VERL[name]} here"))
            if isinstance(value, dict) and value.get("ranks") == []:
                found.append((
                    ("roles", role, "ranks"),
                    f"ranks: [] of role {role} names no rank; leave it out for rank 0, or use "
                    "all_ranks: true or enable: false",
                ))  # fmt: skip
        if found:
            texts = "; ".join(text for _, text in found)
            hint = "; ProfileManager.from_verl(config) reads verl's files"
            is_ours = all(path[-1] == "ranks" for path, _ in found)
            raise self.wrong(found[0][0], texts + ("" if is_ours else hint))

    def _backend(self, schema: _Schema) -> dict[str, Any]:
        try:
            make_backend(schema.tool, schema.output_dir)
        except (TypeError, ValueError) as error:
            raise self.wrong(("tool",), str(error)) from None
        try:
            make_backend(schema.tool, schema.output_dir, schema.options)
        except (TypeError, ValueError) as error:
            raise self.wrong(("options",), str(error)) from None
        return {"tool": schema.tool, "output_dir": schema.output_dir, "options": schema.options}

    # --- roles ---

    def _roles(self, schema: _Schema) -> Iterator[Role]:
        for name, value in schema.roles.items():
            at = ("roles", name)
            if not name:
                raise self.wrong(at, "a role needs a name")
            role: _RoleSchema = self.convert(value, _RoleSchema, at)
            self._check_ranks(role, at)
            if not role.enable:
                continue
            chosen = schema.micro_batches if role.micro_batches is None else role.micro_batches
            discrete = schema.discrete if role.discrete is None else role.discrete
            numbers = None if isinstance(chosen, Schedule) else chosen
            schedule = chosen if isinstance(chosen, Schedule) else None
            if schedule is not None and discrete:
                message = "discrete windows have a list of micro_batches, and no schedule"
                raise self.wrong(at, message)
            ranks = None if role.all_ranks else tuple(role.ranks or (0,))
            yield Role(name, tuple(role.functions), ranks, discrete, numbers, schedule)

    # --- steps ---

    def _steps(self, value: Any) -> Iterator[Steps]:
        items = value if isinstance(value, list) else [] if value is None else [value]
        for number, item in enumerate(items):
            at: _Path = ("steps", number) if isinstance(value, list) else ("steps",)
            steps = self._read_steps(item, at)
            if steps.last is not None and steps.last < steps.first:
                message = f"the last step, {steps.last}, is before the first, {steps.first}"
                raise self.wrong(at, message)
            yield steps

    def _read_steps(self, item: int | str | _StepsSchema, at: _Path) -> Steps:
        if isinstance(item, int):
            return Steps(item, item)
        if isinstance(item, str):
            found = step_slice(item)
            if found is None or min(found.start or 0, found.stop or 0) < 0 or (found.step or 1) < 1:
                raise self.wrong(at, f"a range of steps is 'first-last', not {item!r:.100}")
            last = None if found.stop is None else found.stop - 1
            return Steps(found.start or 0, last, found.step or 1)
        if item.every is None and (item.first is None or item.last is None):
            raise self.wrong(at, "steps have 'every', or 'first' and 'last'")
        every = item.every or 1
        return Steps(every if item.first is None else item.first, item.last, every)

    def _check_continuous(self, plan: Plan) -> None:
        at: _Path = ("continuous_steps",)
        for role in plan.roles:
            if role.discrete:
                raise self.wrong(at, f"the windows of role {role.name!r} are discrete, one a call")
            if role.schedule is not None:
                message = f"the windows of role {role.name!r} follow a schedule of micro-batches"
                raise self.wrong(at, message)
        if is_endless(plan.steps):
            raise self.wrong(at, "every step without a 'last' makes a window without an end")


def _field(path: _Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _split_message(message: str) -> tuple[_Path, str]:
    """The path and the text of what msgspec says: "Expected `int`, got `str` - at `$.a[0]`"."""
    text, _, place = message.partition(" - at `")
    path: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]", place):
        if index == "...":  # a key that is not named
            break
        path.append(name or int(index))
    unknown = re.search(r"(unknown|required) field `([^`]*)`", text)
    if unknown is not None:
        path.append(unknown[2])
        known = "unknown field" if unknown[1] == "unknown" else "this field is needed"
        return tuple(path), known
    return tuple(path), text[:1].lower() + text[1:].replace("`", "")


# --- YAML ---


def _read_yaml(text: str, source: str) -> tuple[Any, dict[_Path, int]]:
    """What YAML holds, and the line of each field. `source` is for messages."""
    yaml = require("yaml", "a configuration in YAML")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and _values_in(root, {}) > VALUES_MAX:
            raise ConfigError(f"has more than {VALUES_MAX} values by its aliases", "", None, source)
        data = yaml.safe_load(text)
    except RecursionError:
        raise ConfigError("is nested too deep, or in itself", "", None, source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"is not YAML: {problem}", "", line, source) from None
    lines: dict[_Path, int] = {}
    if root is not None:
        _note_lines(root, (), lines, source, yaml)
    return {} if data is None else data, lines


def _values_in(node: Any, known: dict[int, int]) -> int:
    """Each counted as often as an alias leads to it. RecursionError where one leads to itself."""
    if id(node) not in known:
        parts = node.value if isinstance(node.value, list) else ()
        inner = itertools.chain.from_iterable(
            one if type(one) is tuple else (one,) for one in parts
        )
        known[id(node)] = 1 + sum(_values_in(one, known) for one in inner)
    return known[id(node)]


def _note_lines(node: Any, path: _Path, lines: dict[_Path, int], source: str, yaml: Any) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            if below in lines:
                raise ConfigError("is there twice", _field(below), key.start_mark.line + 1,
                                  source)  # fmt: skip
            lines[below] = key.start_mark.line + 1
            _note_lines(value, below, lines, source, yaml)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _note_lines(value, (*path, number), lines, source, yaml)
