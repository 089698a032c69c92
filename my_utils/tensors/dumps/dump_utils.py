"""Dumps objects of a training run with their tensors, and loads them with the same types.

    from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader

    dumper = UniversalDumper(DumpConfig(root_dir="./dump_dataset"))
    dump_dir = dumper.dump(stage="after_tokenize", obj=batch, data_id=42, branch="train")

    batch = UniversalLoader(root_dir="./dump_dataset").load(dump_dir)

A dump is a folder `dump_dataset/sample_<id>/<timestamp>__<stage>__<branch>/` with a JSON tree that
a person can read, the elements of all tensors and arrays in one safetensors file, images as files,
and a manifest with digests. It appears under its name when it is complete, or not at all.
docs/correctness/dump-and-reload.md describes the rest.

`DumpTensorIO` keeps single tensors by `(dump_id, tag, rank)`, and compares others with them.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from ...core.arguments import check_int
from ...core.public import public
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from ...record.log.logger import GlobalLogger, SingletonMeta
from .config import DEFAULT_ROOT, DumpConfig, path_text
from .files import open_dump
from .form import TENSORS, TREE, DumpError, class_name, parse_tree, safe_name
from .loader import Decoder, blob_digests
from .pickles import refuse_pickle
from .tree import Tree
from .work_queue import WriteQueue
from .writer import Job, describe, reserve


@public("my_utils.dump_utils")
class UniversalDumper:
    """Writes objects to disk, each as a folder that `UniversalLoader` reads.

    cfg: a `DumpConfig`; the defaults where it is left out.

    A fault while dumping never ends the training: there is one warning, and a count in
    `failed`; with `cfg.strict` it raises DumpError or OSError. A single value that cannot be dumped
    (a lock, a generator) leaves a note in its place and counts in `unsupported`.

    With `cfg.asynchronous` the tree is made and tensors are copied by the caller, so that they may
    be changed as soon as `dump` returns; hashing and writing is done by a thread. What was dumped
    is written before the process ends, be it by its last line, `sys.exit`, an exception or the end
    of a `multiprocessing` child; not by `os._exit` or a signal. Errors of the thread raise, in
    strict mode, at the next `dump`, `flush` or `close`.

    Thread-safe. A forked child begins with its own counts and an empty queue.

    >>> import tempfile
    >>> cfg = DumpConfig(root_dir=tempfile.mkdtemp())
    >>> dump_dir = UniversalDumper(cfg).dump(stage="after_tokenize", obj={"x": (1, 2)}, data_id=42)
    >>> sorted(os.listdir(dump_dir))
    ['manifest.json', 'tree.json']
    >>> UniversalLoader(cfg.root_dir).load(dump_dir)
    {'x': (1, 2)}
    """

    def __init__(self, cfg: DumpConfig | None = None) -> None:
        if cfg is not None and not isinstance(cfg, DumpConfig):
            raise TypeError(f"cfg must be a DumpConfig, not {cfg!r}")
        self.cfg = cfg if cfg is not None else DumpConfig()
        self.written = 0
        self.failed = 0
        self.unsupported = 0
        self._lock = threading.RLock()  # a signal handler may dump while a dump is counted
        self._queue = WriteQueue(self.cfg.queue_bytes)
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return short_repr(self, "cfg", "written", "failed")

    def dump(
        self, stage: object, obj: object, data_id: object = None, branch: object = None
    ) -> str | None:
        """Writes `obj`; returns the folder that holds it, or None if nothing was written.

        stage: the point of the program, such as "after_tokenize".
        data_id: of the sample; dumps of one sample are in one folder, `sample_<id>`.
        branch: of the program or the run, such as "train".

        File names have only allowed characters; the manifest has the original texts. In
        asynchronous mode the folder is there after `flush()`.
        """
        cfg = self.cfg
        if not cfg.enable:
            return None
        self._begin_anew_after_fork()
        self._raise_late_error()
        try:
            tree = Tree(cfg, copy=cfg.asynchronous)
            tree.build(obj)
            self._warn_unsupported(tree)
            place = reserve(os.fspath(cfg.root_dir), data_id, stage, branch)
            about = describe(place, tree, stage, data_id, branch, GlobalLogger().rank)
            job = Job(place, tree, about, cfg.fsync)
            if not cfg.asynchronous:
                job.write()
        except Exception as error:  # what __reduce__ or a property of any class raises, and OSError
            self._fail(stage, error)
            if cfg.strict:
                raise
            return None
        if cfg.asynchronous:
            self._enqueue(job, stage)
        else:
            self._count_written()
        return job.place.final

    def _enqueue(self, job: Job, stage: object) -> None:
        def write() -> None:
            try:
                job.write()
            except Exception as error:
                self._error = error
                self._fail(stage, error)
            else:
                self._count_written()

        self._queue.put(write, job.size)

    def _count_written(self) -> None:
        with self._lock:
            self.written += 1

    def _fail(self, stage: object, error: BaseException) -> None:
        with self._lock:
            self.failed += 1
        with contextlib.suppress(Exception):  # str() of the user's objects
            reason = f"{type(error).__name__}: {error}"
            warn_once("dump", f"a dump of stage {stage!s} was left out: {reason}")

    def _warn_unsupported(self, tree: Tree) -> None:
        if not tree.troubles:
            return
        if self.cfg.strict:
            raise DumpError(os.fspath(self.cfg.root_dir), tree.troubles[0])
        with self._lock:
            self.unsupported += len(tree.troubles)
        warn_once("dump of a value", f"a dump has a note in the place of {tree.troubles[0]}")

    def _raise_late_error(self) -> None:
        error, self._error = self._error, None
        if error is not None and self.cfg.strict:
            raise error

    def _begin_anew_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.RLock()
            self._error = None
            self.written = self.failed = self.unsupported = 0

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all dumps are written; False when that took longer than `timeout_s`."""
        done = self._queue.flush(timeout_s)
        self._raise_late_error()
        return done

    def close(self) -> None:
        """Waits until all dumps are written, and ends the thread. A later `dump` starts another."""
        self._queue.close()
        self._raise_late_error()

    def __enter__(self) -> UniversalDumper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception:  # counted in `failed`, with a warning
            if error is None:
                raise


class _OneDumper(SingletonMeta):
    def __call__(cls, cfg: DumpConfig | None = None) -> Any:
        instance = super().__call__(cfg)
        if cfg is not None and instance.cfg != cfg:
            raise ValueError(
                f"cfg must be that of the first call, {instance.cfg}, not {cfg}: "
                "a process has one DumperSingleton"
            )
        return instance


@public("my_utils.dump_utils")
class DumperSingleton(UniversalDumper, metaclass=_OneDumper):
    """The one `UniversalDumper` of a process, for code that has no place to pass one along.

    The first call takes the `DumpConfig` (or the defaults); later ones return the same instance,
    and raise ValueError for another configuration.

    >>> DumperSingleton(DumpConfig(enable=False)) is DumperSingleton()
    True
    """

    @classmethod
    def get(cls, cfg: DumpConfig | None = None) -> UniversalDumper:
        """The same as `DumperSingleton(cfg)`."""
        return cls(cfg)


@public("my_utils.dump_utils")
class UniversalLoader:
    """Reads what `UniversalDumper` wrote.

    root_dir: the folder of the dumps; nothing outside of it is read.
    max_bytes: size beyond which a tree, an image or a pickle is refused. (Tensors have no such
        limit: their sizes must agree with the file's before memory is taken.)

    Thread-safe.
    """

    def __init__(
        self, root_dir: str | os.PathLike[str] = DEFAULT_ROOT, *, max_bytes: int = 1 << 28
    ) -> None:
        self.root_dir = path_text("root_dir", root_dir)
        check_int("max_bytes", max_bytes, 1)
        self.max_bytes = max_bytes

    def __repr__(self) -> str:
        return short_repr(self, "root_dir")

    def load(
        self,
        dump_dir: str | os.PathLike[str] | None,
        *,
        verify: bool = True,
        allow_pickle: bool = False,
        types: Iterable[type] = (),
    ) -> Any:
        """The object of a dump.

        dump_dir: as `dump` returned it, or relative to root_dir. None, which `dump` returns if it
            wrote nothing, raises TypeError.
        verify: compare every file with its digest, so that a single changed bit is found. With
            False tensors and arrays are mapped, and read from the disk when they are touched;
            changes made to them stay in this process.
        allow_pickle: unpickle what only pickle could take. That runs code that the writer of the
            dump chose; without it such a dump is refused.
        types: dataclasses, namedtuples, enums and factories of defaultdicts that may be recreated,
            besides those of modules that are imported already. Nothing is imported for a dump.
            Others are loaded as a `StandIn`.

        No constructor and no `__post_init__` runs. One warning names the first part that is not as
        it was (cut by a limit, a stand-in, a device that is not there), and counts the others.

        Raises:
            DumpError: a file is missing, cut off, changed, a link, or has what no dump has.
            FileNotFoundError: there is no such folder.

        >>> import tempfile
        >>> loader = UniversalLoader(tempfile.mkdtemp())
        >>> loader.load("../elsewhere")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        my_utils.dump_utils.DumpError: …/elsewhere: is outside of root_dir, …
        """
        dump_dir = path_text("dump_dir", dump_dir)
        classes = {class_name(kind): kind for kind in types}
        for kind in classes.values():
            if not isinstance(kind, type):
                raise TypeError(f"types must be classes, not {kind!r}")
        with open_dump(self.root_dir, dump_dir) as folder:
            pickles = [name for name in folder.manifest["files"] if name.startswith("pickle")]
            if pickles and not allow_pickle:
                raise refuse_pickle(folder.file(pickles[0]), "see its node in tree.json")
            tree_path = folder.file(TREE)
            text = folder.read(TREE, self.max_bytes, verify=verify)
            document, hashed = parse_tree(text, tree_path)
            index, blobs = folder.read_blobs(verify=verify)
            if verify:
                folder.verify_blobs(blobs, blob_digests(hashed, tree_path))
                for name in folder.manifest["files"].keys() - {TREE, TENSORS}:
                    folder.read(name, self.max_bytes, verify=True)
            decoder = Decoder(
                folder, document, blobs, index, classes, allow_pickle, verify, self.max_bytes
            )
            result = decoder.decode()
        if decoder.notes:
            more = f" (and {len(decoder.notes) - 1} more)" if len(decoder.notes) > 1 else ""
            warn_once(f"load {folder.path}", f"{folder.path}: {decoder.notes[0]}{more}")
        return result

    def manifest(self, dump_dir: str | os.PathLike[str]) -> dict[str, Any]:
        """What a dump is of: stage, branch, data_id, time, host, pid, rank, counts, files.

        Raises DumpError and FileNotFoundError as `load` does.
        """
        with open_dump(self.root_dir, path_text("dump_dir", dump_dir)) as folder:
            return folder.manifest

    def dumps(
        self, *, data_id: object = None, stage: object = None, branch: object = None
    ) -> list[str]:
        """The folders of the dumps under root_dir, oldest first; of one sample, stage or branch.

        >>> import tempfile
        >>> UniversalLoader(tempfile.mkdtemp()).dumps(data_id=42)
        []
        """
        sample, *parts = [
            "*" if part is None else safe_name(part) for part in (data_id, stage, branch)
        ]
        pattern = "__".join([f"sample_{sample}/*", *parts])
        found = [
            os.path.join(self.root_dir, path)
            for path in glob.glob(pattern, root_dir=self.root_dir)
            if os.path.basename(path).count("__") == 2
        ]
        return sorted(filter(_is_folder, found), key=lambda path: (os.path.basename(path), path))


def _is_folder(path: str) -> bool:
    """Whether it is a folder, and neither it nor the one above it is a link."""
    is_link = os.path.islink(path) or os.path.islink(os.path.dirname(path))
    return os.path.isdir(path) and not is_link
