"""The commands of `my_utils`: their words, where each one is, and what it does in one line."""

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
    Command("run", "run.command", "run a training script and time its stages, without an edit"),
    Command("why", "why.command", "what the time of a run is lost to, and on which rank"),
    Command("report", "report.command", "a page about a run: ranks, stages and steps"),
    Command("diff", "diff.command", "how much slower run B is than A, in which stage and ranks"),
    Command("live", "live.command", "what the ranks of a job do now, and which one hangs"),
    Command("trace", "trace.csv2trace", "a trace of a run for Perfetto"),
    Command("timeline", "trace.timeline", "a picture of a few steps"),
    Command("diverge", "diverge.compare", "the first module at which two recorded runs part"),
    Command("capture", "capture.on_demand.command", "capture a few steps of a job that runs"),
    Command("ncu", "ncu.analysis", "sum up or compare what Nsight Compute measured"),
    Command("demo", "demo.command", "train a small GPT on two ranks and show where time goes"),
    Command("port cuda", "musa.simple_porting", "rewrite a folder of CUDA sources for MUSA or HIP"),
    Command("port scripts", "musa.converter", "rewrite Python scripts that use CUDA for MUSA"),
    Command("env", "cli.env", "versions, what is installed, and where the logs are"),
    Command("completion", "cli.completion", "the completion script of bash, zsh or fish"),
)  # fmt: skip

# What people may type in place of a command, and the command.
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


def group_of(word: str) -> tuple[Command, ...]:
    """The commands that begin with the word."""
    return tuple(command for command in COMMANDS if command.words[0] == word)
