"""The table of the commands of `my_utils`: words, module and one line of help for each."""

from __future__ import annotations


class Command:
    """words: what the user types, two for a command of a group. module: below my_utils; it has
    `main(argv)`, and `command_parser()` for completion. It is imported when the command runs."""

    def __init__(self, words: str, module: str, help: str) -> None:
        self.words = tuple(words.split())
        self.module = module
        self.help = help

    def __repr__(self) -> str:
        return f"Command({' '.join(self.words)!r}, {self.module!r})"


COMMANDS = (
    Command("run", "run.command", "run an unchanged training script and time its stages"),
    Command("why", "cli.why", "show where a run loses time, and on which rank"),
    Command("report", "cli.report", "write a page about a run: ranks, stages and steps"),
    Command("diff", "cli.diff", "compare the speed of two runs, by stage and rank"),
    Command("live", "cli.live", "show what the ranks of a job do now, and which one hangs"),
    Command("trace", "trace.csv2trace", "write a trace of a run for Perfetto"),
    Command("timeline", "trace.timeline", "draw a few steps of a run"),
    Command(
        "diverge", "tensors.diverge.compare", "find the first module at which two recordings differ"
    ),
    Command("passport", "cli.passport", "write the sums of a checkpoint's tensors"),
    Command("passport diff", "cli.passport_diff", "say whether two sides have the same weights"),
    Command("passport history", "cli.passport_history", "say since which step weights differ"),
    Command(
        "capture", "profilers.capture.on_demand.command", "capture a few steps of a running job"
    ),
    Command("ncu", "profilers.ncu.analysis", "summarize or compare results of Nsight Compute"),
    Command("demo", "cli.demo", "train a small GPT on two ranks and show where time goes"),
    Command("port cuda", "musa.simple_porting", "rewrite a folder of CUDA sources for MUSA or HIP"),
    Command("port scripts", "musa.converter", "rewrite Python scripts that use CUDA for MUSA"),
    Command("env", "cli.env", "show versions, installed packages, and the newest run"),
    Command("completion", "cli.completion", "print the completion script of bash, zsh or fish"),
)

# What users may type instead of a command, and the command.
OLD_NAMES = {
    "compare": "diff",
    "convert": "trace",
    "converter": "port scripts",
    "csv2trace": "trace",
    "cuda": "port cuda",
    "help": "--help",
    "hang": "live",
    "musa-converter": "port scripts",
    "ncu_analyze_from_csv": "ncu",
    "scripts": "port scripts",
    "simple_porting": "port cuda",
    "top": "live",
    "version": "--version",
}


def find_group(word: str) -> tuple[Command, ...]:
    """The commands that begin with the word."""
    return tuple(command for command in COMMANDS if command.words[0] == word)
