"""The Weights & Biases logger, which neither stops a run nor records its secrets."""

import logging
import os
import secrets
import shutil
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import; its reports delay the exit without a network
os.environ.setdefault("WANDB_SILENT", "true")  # its summary would hide that of Triptych
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning_utilities.core.imports import lazy_import

from triptych.storage.redaction import Redactor
from triptych.storage.run_directory import BEST, LAST

if TYPE_CHECKING:
    import wandb
else:
    wandb = lazy_import("wandb")  # the import takes a fraction of a second

log = logging.getLogger("triptych")

AXES = ("tokens", "train_flops", "elapsed_s")
"""Metrics that can be the x axis instead of the step."""

FLUSH = 0.5
"""Seconds of the history that may be lost if the host fails."""

AGAIN = 10 * FLUSH
"""Seconds of the history that a resumed run logs again."""

PARTS = ("params_by_part", "train_flops_by_part")


class WandbLogger(LightningWandbLogger):
    """Lightning's W&B logger, which continues offline if the server is not reachable.

    A run that resumes in its directory continues the same W&B run, whose id is in ``save_dir/wandb/id``. Command,
    standard output, code and git remote are not recorded.

    Each row of ``metrics.csv`` is a row of the W&B history, with its ``step`` as ``trainer/global_step``. This is the
    default x axis; ``tokens``, ``train_flops`` and ``elapsed_s`` can be chosen instead.

    Args:
        project: the W&B project.
        name: name of the run.
        save_dir: the run directory; the files go into ``save_dir/wandb``.
        offline: whether to write only files, for ``wandb sync``.
        entity: user or team that owns the project; None: the default of the account.
        group: group of the run; None: the experiment, for all seeds.
        tags: tags of the run, in addition to those of ``describe``.
        job_type: job type, by which W&B can also group runs.
        log_model: whether to upload checkpoints/last.ckpt at the end, and best.ckpt if it differs.
        init_timeout: seconds without a response after which the run continues offline.
        finish_timeout: seconds to wait for the upload at the end, after a quarter of them for the samples.
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
            x_disable_meta=True,  # the metadata contain the command
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
        self._wandb_init.pop("anonymous")  # Lightning always passes it, and W&B warns about it
        self._files = Path(save_dir) / "wandb"
        self._is_lost = False
        self._patience = finish_timeout / 4  # finish() waits afterwards
        self._logs_checkpoints = log_model  # Lightning supports only its own checkpoint callback

    def start_afresh(self) -> None:
        """Makes the next start create a new W&B run instead of continuing that of this directory.

        Offline files of the old run that are not synced yet are deleted, because its steps are repeated."""
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
            log.warning("W&B cannot be used (%s); the run continues offline. Upload it later with `wandb sync`", reason)
            wandb.teardown()  # the started process holds the id
            self._offline, self._wandb_init["mode"] = True, "offline"
            run = super().experiment
        for axis in AXES:
            run.define_metric(axis)
        return run

    def describe(self, labels: Mapping[str, str]) -> None:
        """Sets the labels, tags and group of the W&B run before it starts.

        Args:
            labels: labels by name, such as experiment, architecture, task and data.
        """
        own = [labels["architecture"], labels["task"], labels["data"]]
        others = [f"{name}:{value}" for name, value in labels.items() if name != "experiment" and value not in own]
        tags = [*(self._wandb_init["tags"] or []), *own, *others]
        self._wandb_init["tags"] = list(dict.fromkeys(tag[:64] for tag in tags))  # the maximum length in W&B
        self._wandb_init["group"] = self._wandb_init["group"] or labels["experiment"]
        self._wandb_init["config"] = {"labels": dict(labels)}

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics, until the W&B process has ended: a scheduler may end it before the run has saved."""
        try:
            super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)
        except ConnectionError:
            if not self._is_lost:
                log.warning("the W&B process has exited; the run only logs to metrics.csv from now on")
            self._is_lost = True

    @rank_zero_only
    def log_record(
        self, record: Mapping[str, Any], checkpoints: Path, attention: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Logs the record at the end: its numbers and texts, samples, confusion matrix, attention and checkpoints.

        Checkpoints are logged if ``log_model`` is set. For tables and checkpoints, W&B contacts its server immediately;
        the wait for a response is limited, and an error does not stop the run.

        Args:
            record: content of summary.json.
            checkpoints: folder of the checkpoints.
            attention: plotly figures as plain data, by name.
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

    def log_again(self, rows: Iterable[Mapping[str, str]]) -> None:
        """Logs the last rows before the checkpoint of a resumed run again, in case W&B did not write them to disk.

        Args:
            rows: rows of ``metrics.csv`` up to the checkpoint.
        """
        recent = deque[tuple[float, Mapping[str, str]]]()
        for row in rows:
            recent.append((float(row.get("elapsed_s") or 0), row))
            while recent[0][0] <= recent[-1][0] - AGAIN:
                recent.popleft()
        for _, row in recent:
            values = {name: float(value) for name, value in row.items() if value and name != "step"}
            self.log_metrics(values, int(row["step"]))

    def finish(self, *, failed: bool) -> None:
        """Ends the W&B run.

        Args:
            failed: whether W&B shows the run as failed.
        """
        if self._experiment is None:
            return
        try:
            self._experiment.finish(exit_code=int(failed))
        except ConnectionError:
            failed = True
        except (wandb.Error, OSError):  # a TimeoutError is one
            log.warning("W&B has not got everything; `wandb sync %s` uploads it", self._files / "run-*")
        if failed:  # a scheduler may end the W&B process first, which W&B would report at exit with a traceback
            with suppress(ConnectionError):
                wandb.teardown()

    def _run_id(self) -> str:
        file = self._files / "id"
        if not file.exists() or not file.read_text():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(secrets.token_hex(8))
        return file.read_text()


def log_record(
    run: Any, record: Mapping[str, Any], checkpoints: Path | None, attention: Mapping[str, Mapping[str, Any]]
) -> None:
    """Logs the record of a run to its W&B run.

    Args:
        record: content of summary.json.
        checkpoints: folder of the checkpoints to log; None: none.
        attention: plotly figures as plain data, by name.
    """
    plain = {key: value for key, value in record.items() if isinstance(value, int | float | str)}
    parts = {f"{key}.{part}": value for key in PARTS for part, value in record[key].items()}
    run.summary.update({**plain, **parts, **{f"optimum/{name}": v for name, v in record["optimum"].items()}})
    columns: list[str | int] = ["input", "reference", "output"]
    rows = [[sample[column] for column in columns] for sample in record["samples"]]
    # Tables are stored there for `wandb sync`; the default of W&B is in the home directory.
    os.environ["WANDB_DATA_DIR"] = str(Path(run.settings.sync_dir).parent.absolute())
    pictures: dict[str, Any] = {"test/samples": wandb.Table(columns=columns, data=rows)} if rows else {}
    if (matrix := record["confusion_matrix"]) is not None:
        pictures["test/confusion_matrix"] = confusion_chart(matrix["labels"], matrix["counts"])
    if attention:
        from plotly.graph_objects import Figure  # type: ignore[import-untyped] # a slow import

        pictures |= {f"attention/{name}": wandb.Plotly(Figure(figure)) for name, figure in attention.items()}
    if pictures:  # a trial of a search has none
        run.log(pictures)
    if checkpoints is None:
        return
    files = {"best": checkpoints / BEST, "last": checkpoints / LAST}
    if not files["best"].exists() or files["best"].samefile(files["last"]):
        del files["best"]
    for alias, file in files.items():
        artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata={"steps": record["steps"]})
        artifact.add_file(str(file.absolute()), name="model.ckpt", policy="immutable")  # without a copy
        run.log_artifact(artifact, aliases=["latest", alias])


def confusion_chart(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> Any:
    """Makes W&B's chart of a confusion matrix from counts. (The function of W&B needs every prediction.)

    Args:
        labels: names of the classes.
        counts: one row per true class, one column per predicted class.
    """
    columns = {"Actual": "Actual", "Predicted": "Predicted", "nPredictions": "nPredictions"}
    rows = [[*pair, count] for pair, count in zip(product(labels, repeat=2), chain(*counts), strict=True)]
    table = wandb.Table(columns=list(columns), data=rows)
    return wandb.plot_table("wandb/confusion_matrix/v1", table, columns, {"title": "test/confusion_matrix"})
