"""Descriptors that a program closes: what it prints or writes then never meets a file of ours."""

from __future__ import annotations

from pathlib import Path

from ..conftest import RunPython
from .programs import finished, run, steps_of, told

CSV = "logs/profile_rank_0.csv"


def test_what_is_printed_to_a_closed_stream_is_in_no_file(
    run_python: RunPython, tmp_path: Path
) -> None:
    """As a library in C does, which does not know that the stream is closed."""
    finished(
        run_python,
        """
        for stream in (0, 1, 2):
            os.close(stream)
        logger.setup("logs", console=False)
        stages(3); timer.step()
        for stream in (0, 1, 2):
            try:
                os.write(stream, b"printed")
            except OSError:
                continue
            os._exit(stream + 1)
        stages(3, first=3)
        """,
    )
    assert steps_of(tmp_path / CSV) == list(range(6))


def test_files_that_a_program_opens_in_the_place_of_ours_stay_its_own(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(3); timer.step()
        import logging
        os.closerange(3, 256)
        files = [open(f"checkpoint{number}", "wb", buffering=0) for number in range(8)]
        stages(3000, first=3); timer.step()
        logging.getLogger("my_utils").warning("a line of the text log")
        logger.close()
        for file in files:
            file.write(b"weights")
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "the profile CSV could not be written, and rows were lost" in done.stderr
    assert {path.read_bytes() for path in tmp_path.glob("checkpoint*")} == {b"weights"}


def test_a_part_that_cannot_be_begun_costs_no_row_and_is_not_called_one(
    run_python: RunPython, tmp_path: Path
) -> None:
    """A program that has all descriptors open that it may have."""
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False, max_csv_bytes=20_000, windows_bytes=0)
        def steps(first, end):
            for step in range(first, end):
                stages(1, first=step)
                timer.step()
        steps(0, 10)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
        steps(10, 300)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        steps(300, 310)
        counts = _core.troubles()
        print(counts["failed_writes"], counts["lost_rows"], counts["failed_rotations"] > 1)
        """,
    )
    assert done.stdout.split() == ["0", "0", "True"]
    assert len(told(done, tmp_path / "logs", "could not be begun")) == 1
    assert told(done, tmp_path / "logs", "rows were lost") == []
    assert steps_of(tmp_path / "logs/profile_rank_0.part0001.csv") == list(range(301))
    assert steps_of(tmp_path / CSV) == list(range(301, 310))
