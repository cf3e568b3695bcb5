"""A directory of results: one run writes to it at a time, and what was written stays.

suite.json      what is run here
results.csv     a row for each run, appended and flushed as they come
damaged.csv     lines of results.csv that could not be read when a run was resumed
details/        for each run what has no place in a row, as JSON
logs/           for each run what its process said
profile.json    the cost model, where the suite calibrates
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from costmodel.errors import MeshwrightError
from experiments.runner.columns import COLUMNS, KEY
from experiments.runner.suite import Suite
from experiments.runner.trial import Key

RESERVE_BYTES = 1 << 16
"""Set aside while a run goes on, so that a disk that fills up still takes the row that was just measured."""

Row = Mapping[str, Any]


class ResultsError(MeshwrightError):
    """A directory of results that cannot be written or read, is in use, or holds something else."""


@dataclass(frozen=True)
class Damage:
    """A line of a results file that is no row.

    Attributes:
        line: its number, from 1.
    """

    path: Path
    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


def read_results(directory: Path) -> tuple[list[Row], list[Damage]]:
    """The rows of a directory, and the lines that are none.

    Columns that this version does not know are left out, those that the file lacks are empty.

    Raises:
        ResultsError: there are no results, or the file does not begin with the names of columns.
    """
    path = directory / "results.csv"
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise ResultsError(
            f"{directory} holds no results: {path.name}: {error.strerror}; make some with meshwright run"
        ) from error
    head, *lines = text.split("\n")
    names = head.split(",")
    if not set(KEY) <= set(names):
        raise ResultsError(f"{path} does not begin with the names of the columns but with {head[:60]!r}")
    rows, damaged = [], []
    for number, line in enumerate(lines, 2):
        whole = number < len(lines) + 1
        if not line and not whole:
            continue
        try:
            rows.append(_read_row(names, line, whole))
        except ValueError as error:
            damaged.append(Damage(path, number, line, str(error)))
    return rows, damaged


def _read_row(names: list[str], line: str, whole: bool) -> Row:
    if not whole:
        raise ValueError("the line is cut off")
    cells = next(csv.reader([line], strict=True), [])
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} cells for {len(names)} columns")
    found = dict(zip(names, cells, strict=True))
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name in COLUMNS.keys() & found.keys():
        try:
            row[name] = COLUMNS[name].read(found[name])
        except ValueError:
            raise ValueError(f"{name} is {found[name]!r}, a number belongs there") from None
    if any(row[name] in (None, "") for name in (*KEY, "status")):
        raise ValueError("it does not say which run it is")
    return row


def key_of(row: Row) -> Key:
    """As in `columns.KEY`."""
    workload, size, mesh, strategy, repeat = (row[name] for name in KEY)
    return workload, size, mesh, strategy, repeat


class ResultsDirectory(AbstractContextManager["ResultsDirectory"]):
    """A directory while a run writes to it.

    Attributes:
        rows: what it holds.
        damaged: lines that were set aside when it was opened.
    """

    def __init__(self, path: Path, suite: Suite, resume: bool):
        """Opens a directory, made if need be.

        Raises:
            ResultsError: it cannot be written, another run writes to it, or it holds rows and is not to be resumed, or
                those of another suite.
        """
        self.path = path
        self.rows: list[Row] = []
        self.damaged: list[Damage] = []
        try:
            for part in ("details", "logs"):
                (path / part).mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock")
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ResultsError(f"another run writes to {path}; wait for it, or name another directory: --out") from None
        except OSError as error:
            raise ResultsError(f"cannot write to {path}: {error.strerror}; name another directory: --out") from error
        try:
            self._open(suite, resume)
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            self._lock.release()
            raise ResultsError(f"cannot write to {path}: {error.strerror}; name another directory: --out") from error
        except BaseException:
            self._lock.release()
            raise

    def _open(self, suite: Suite, resume: bool) -> None:
        if self._results.exists():
            self._continue(suite, resume)
        else:
            self._replace(self.path / "suite.json", json.dumps(suite.record(), indent=1) + "\n")
            self._replace(self._results, ",".join(COLUMNS) + "\n")
        self._file = os.open(self._results, os.O_WRONLY | os.O_APPEND)
        self._reserve.write_bytes(b"\0" * RESERVE_BYTES)

    def _continue(self, suite: Suite, resume: bool) -> None:
        self.rows, self.damaged = read_results(self.path)
        if not resume:
            raise ResultsError(
                f"{self.path} holds {len(self.rows)} rows of an earlier run; go on with it by --resume, or name "
                f"another directory: --out"
            )
        earlier = read_suite_record(self.path)
        if changed := [key for key, value in suite.record().items() if earlier.get(key) != value]:
            raise ResultsError(
                f"{self.path} holds the results of another suite: {', '.join(changed)} differ; runs are not mixed, "
                f"name another directory: --out"
            )
        if self._results.read_text().partition("\n")[0].split(",") != list(COLUMNS):
            raise ResultsError(
                f"{self._results} was written by another version, with other columns; name another directory: --out"
            )
        if self.damaged:
            self._set_aside()

    def _set_aside(self) -> None:
        """Damaged lines go to a file of their own first, then the rows that are left take the place of all."""
        with (self.path / "damaged.csv").open("a") as file:
            file.writelines(f"{damage.text}\n" for damage in self.damaged)
            file.flush()
            os.fsync(file.fileno())
        self._replace(self._results, ",".join(COLUMNS) + "\n" + "".join(map(line_of, self.rows)))

    def append(self, row: Row, details: Mapping[str, Any]) -> None:
        """Writes a run's details, then its row, down to the disk.

        Raises:
            ResultsError: the disk is full or gone; says whether the row was kept. No other row is harmed.
        """
        line = line_of(row)
        try:
            if details:
                self._replace(details_path(self.path, key_of(row)), json.dumps(details))
            self._write(line)
        except OSError as error:
            self._reserve.unlink(missing_ok=True)
            try:
                self._write(line)
            except OSError:
                kept = f"the last one could not be written, it is\n{line.strip()}\n"
            else:
                self.rows.append(row)
                kept = "the last one among them"
            raise ResultsError(
                f"cannot write to {self._results}: {error.strerror}; {len(self.rows)} rows are safe there, {kept}; "
                f"make room and go on with --resume"
            ) from error
        self.rows.append(row)

    def _write(self, line: str) -> None:
        """The whole line, or nothing of it."""
        data, before = line.encode(), os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written < len(data):
                os.write(self._file, data[written:])
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def _replace(self, path: Path, text: str) -> None:
        """Writes a file so that it is there as a whole or not at all."""
        draft = path.with_name(f".{path.name}.new")
        try:
            with draft.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @property
    def _results(self) -> Path:
        return self.path / "results.csv"

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    def log(self, key: Key) -> Path:
        """Where a run's process writes what it has to say."""
        return self.path / "logs" / f"{file_name(key)}.txt"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reserve.unlink(missing_ok=True)
        os.close(self._file)
        self._lock.release()


def read_suite_record(directory: Path) -> dict[str, Any]:
    """The suite of a directory, as `Suite.record` wrote it; empty if that is gone."""
    try:
        found: dict[str, Any] = json.loads((directory / "suite.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def line_of(row: Row) -> str:
    """A row as a line of the file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.write(row.get(name)) for name, column in COLUMNS.items()])
    return text.getvalue()


def details_path(directory: Path, key: Key) -> Path:
    return directory / "details" / f"{file_name(key)}.json"


def file_name(key: Key) -> str:
    """A run's name as files have it."""
    return re.sub(r"[^\w@.-]+", "_", "-".join(map(str, key)))
