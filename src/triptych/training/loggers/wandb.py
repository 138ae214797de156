"""Weights & Biases, which must not stop a training nor learn its secrets."""

import logging
import os
import secrets
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import; its reports delay the exit without a network
os.environ.setdefault("WANDB_SILENT", "true")  # its summary would bury ours
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.imports import lazy_import

from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import BEST, LAST

if TYPE_CHECKING:
    import wandb
else:
    wandb = lazy_import("wandb")  # takes a part of a second, of every command that trains or evaluates

log = logging.getLogger("triptych")

AXES = ("tokens", "train_flops", "time_s")
"""Series that others may be drawn against, besides the updates."""

FLUSH = 0.5
"""Seconds of the series that may be lost with the machine."""

AGAIN = 10 * FLUSH
"""Seconds of the series that a run that goes on logs again."""

PARTS = ("params_by_part", "train_flops_by_part")


class WandbLogger(LightningWandbLogger):
    """Lightning's logger, which goes on offline when the server is out of reach.

    A run that is resumed in its directory continues the same W&B run: the id stands in ``save_dir/wandb/id``. Command,
    standard output, code and git remote are not recorded.

    Each row of ``metrics.csv`` is a row of W&B's history, and ``trainer/global_step`` is its ``step``. That is the x
    axis of everything; ``tokens``, ``train_flops`` and ``time_s`` can be chosen.

    Args:
        project: the W&B project.
        name: of the run.
        save_dir: the run directory; the files go into ``save_dir/wandb``.
        offline: write files only, for ``wandb sync``.
        entity: the user or team that the project belongs to; None: the default of the account.
        group: of runs that belong together; None: those of one experiment, whatever their seeds.
        tags: of the run, besides those of ``describe``.
        job_type: the kind of work, by which W&B groups too.
        log_model: whether the end uploads checkpoints/last.ckpt, and best.ckpt if it is another.
        init_timeout: seconds without an answer after which the run goes on offline.
        finish_timeout: seconds that the end waits for the upload, after a quarter of them for the samples.
    """

    def __init__(
        self,
        *,
        project: str,
        name: str,
        save_dir: str,
        offline: bool = True,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] | None = None,
        job_type: str = "train",
        log_model: bool = False,
        init_timeout: float = 8.0,
        finish_timeout: float = 20.0,
    ) -> None:
        redact = Redactor()
        settings = wandb.Settings(
            init_timeout=init_timeout,
            finish_timeout=finish_timeout,
            finish_timeout_raises=True,
            x_transaction_log_flush_interval=FLUSH,
            console="off",
            disable_code=True,
            disable_git=True,
            program="",
            save_code=False,
            silent=True,
            x_disable_meta=True,  # the command is part of it
        )
        super().__init__(
            project=project,
            name=redact(name),
            save_dir=save_dir,
            offline=offline,
            mode="offline" if offline else None,
            entity=entity,
            group=redact(group),
            tags=redact(tags),
            job_type=job_type,
            settings=settings,
        )
        self._wandb_init.pop("anonymous")  # Lightning always passes it, W&B warns of it
        self._files = Path(save_dir) / "wandb"
        self._is_lost = False
        self._patience = finish_timeout / 4  # then finish() waits
        self._logs_checkpoints = log_model  # Lightning's own knows its own callback only

    def start_afresh(self) -> None:
        """The next start makes a new W&B run instead of continuing the one of this directory. What that one has written
        for ``wandb sync`` goes, unless it is there already: its updates are done again."""
        file = self._files / "id"
        for folder in self._files.glob(f"offline-run-*-{file.read_text()}*") if file.exists() else ():
            if not list(folder.glob("*.synced")):
                shutil.rmtree(folder, ignore_errors=True)
        file.unlink(missing_ok=True)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; the first access starts or continues it."""
        if self._experiment is not None:
            return self._experiment
        self._wandb_init["id"] = self._run_id()
        try:
            run = super().experiment
        except (wandb.Error, OSError) as error:
            if self._offline:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("W&B cannot be used (%s); the run goes on offline, for `wandb sync` later", reason)
            wandb.teardown()  # what was started holds the id
            self._offline, self._wandb_init["mode"] = True, "offline"
            run = super().experiment
        for axis in AXES:
            run.define_metric(axis)
        return run

    def describe(self, labels: Mapping[str, str]) -> None:
        """Says what the run is, before it starts: in its configuration, as tags, and for its group.

        Args:
            labels: by name: experiment, architecture, task, data and the like.
        """
        own = [labels["architecture"], labels["task"], labels["data"]]
        others = [f"{name}:{value}" for name, value in labels.items() if name != "experiment" and value not in own]
        tags = [*(self._wandb_init["tags"] or []), *own, *others]
        self._wandb_init["tags"] = list(dict.fromkeys(tag[:64] for tag in tags))  # W&B takes no longer ones
        self._wandb_init["group"] = self._wandb_init["group"] or labels["experiment"]
        self._wandb_init["config"] = {"labels": dict(labels)}

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics; not any more if the process that writes for W&B is gone: a scheduler that cancels or preempts a
        job ends it before the run has saved."""
        row = {name: value for name, value in metrics.items() if name != "epoch"}  # steps are the clock
        try:
            super().log_metrics(row, step)
        except ConnectionError:
            if not self._is_lost:
                log.warning("the process of W&B is gone; metrics.csv goes on")
            self._is_lost = True

    @rank_zero_only
    def log_record(
        self, record: Mapping[str, Any], checkpoints: Path, attention: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Adds what is known at the end: numbers and texts of the record, a table of samples, the confusion matrix,
        where the network looks, and the checkpoint if it was asked for. Of tables and checkpoints W&B asks its server
        at once; one that does not answer is not waited for long, and one that refuses does not stop the run.

        Args:
            record: what summary.json holds.
            checkpoints: their folder.
            attention: figures of plotly, as plain data, by their names.
        """
        run, failures = self.experiment, []

        def work() -> None:
            try:
                log_record(run, record, checkpoints if self._logs_checkpoints else None, attention)
            except Exception as error:
                failures.append(type(error).__name__)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(None if self._offline else self._patience)
        if thread.is_alive() or failures:
            reason = failures[0] if failures else "no answer"
            log.warning("W&B has not got the samples of the test (%s); summary.json has them", reason)

    def log_again(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Logs the last rows before a checkpoint that a run goes on from once more, the same: the end of W&B's process
        may have come before they were on the disk.

        Args:
            rows: of ``metrics.csv`` up to there.
        """
        times = [float(row.get("time_s") or 0) for row in rows]
        for row, seconds in zip(rows, times, strict=True):
            if seconds > times[-1] - AGAIN:
                values = {name: float(value) for name, value in row.items() if value and name != "step"}
                self.log_metrics(values, int(row["step"]))

    def finish(self, *, failed: bool) -> None:
        """Ends the W&B run.

        Args:
            failed: what W&B shows of it.
        """
        if self._experiment is None:
            return
        try:
            self._experiment.finish(exit_code=int(failed))
        except ConnectionError:
            with suppress(ConnectionError):
                wandb.teardown()  # which would say so once more, with a traceback
        except (wandb.Error, OSError):  # a TimeoutError is one
            log.warning("W&B has not got everything; `wandb sync %s` uploads it", self._files / "run-*")

    def _run_id(self) -> str:
        file = self._files / "id"
        if not file.exists() or not file.read_text():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(secrets.token_hex(8))
        return file.read_text()


def log_record(
    run: Any, record: Mapping[str, Any], checkpoints: Path | None, attention: Mapping[str, Mapping[str, Any]]
) -> None:
    """Adds the record of a run to W&B's.

    Args:
        record: what summary.json holds.
        checkpoints: the folder of those to log; None: none.
        attention: figures of plotly, as plain data, by their names.
    """
    plain = {key: value for key, value in record.items() if isinstance(value, int | float | str)}
    parts = {f"{key}.{part}": value for key in PARTS for part, value in record[key].items()}
    run.summary.update({**plain, **parts, **{f"optimum/{name}": v for name, v in record["optimum"].items()}})
    columns: list[str | int] = ["input", "reference", "output"]
    rows = [[sample[column] for column in columns] for sample in record["samples"]]
    # Tables wait there for `wandb sync`; W&B's own place is in the home directory.
    os.environ["WANDB_DATA_DIR"] = str(Path(run.settings.sync_dir).parent.absolute())
    pictures: dict[str, Any] = {"test/samples": wandb.Table(columns=columns, data=rows)} if rows else {}
    if (matrix := record["confusion_matrix"]) is not None:
        pictures["test/confusion_matrix"] = confusion_chart(matrix["labels"], matrix["counts"])
    if attention:
        from plotly.graph_objects import Figure  # type: ignore[import-untyped] # takes its time

        pictures |= {f"attention/{name}": wandb.Plotly(Figure(figure)) for name, figure in attention.items()}
    if pictures:  # of a trial of a search there are none
        run.log(pictures)
    if checkpoints is None:
        return
    files = {"best": checkpoints / BEST, "last": checkpoints / LAST}
    if not files["best"].exists() or files["best"].samefile(files["last"]):
        del files["best"]
    for alias, file in files.items():
        artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"updates": record["updates"]})
        artifact.add_file(str(file.absolute()), name="model.ckpt", policy="immutable")  # without a copy
        run.log_artifact(artifact, aliases=["latest", alias])


def confusion_chart(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Any:
    """W&B's own chart of a confusion matrix, from counts. (Its function for that wants each prediction.)

    Args:
        labels: of the classes.
        counts: a row for each true class, a column for each predicted one.
    """
    columns = {"Actual": "Actual", "Predicted": "Predicted", "nPredictions": "nPredictions"}
    rows = [
        [actual, predicted, count]
        for actual, row in zip(labels, counts, strict=True)
        for predicted, count in zip(labels, row, strict=True)
    ]
    table = wandb.Table(columns=list(columns), data=rows)
    return wandb.plot_table("wandb/confusion_matrix/v1", table, columns, {"title": "test/confusion_matrix"})
