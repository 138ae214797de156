"""Weights & Biases, which must not stop a training nor learn its secrets."""

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import; its reports delay the exit without a network
os.environ.setdefault("WANDB_SILENT", "true")  # its summary would bury ours
import wandb
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger

from triptych.redaction import Redactor

log = logging.getLogger("triptych")


class WandbLogger(LightningWandbLogger):
    """Lightning's logger, which goes on offline when the server is out of reach.

    A run that is resumed in its directory continues the same W&B run: the id stands in ``save_dir/wandb/id``. Command,
    standard output, code and git remote are not recorded.

    Args:
        project: the W&B project.
        name: of the run.
        save_dir: the run directory; the files go into ``save_dir/wandb``.
        offline: write files only, for ``wandb sync``.
        entity: the user or team that the project belongs to; None: the default of the account.
        group: of runs that belong together.
        tags: of the run.
        init_timeout: seconds without an answer after which the run goes on offline.
        finish_timeout: seconds that the end waits for what is not uploaded yet.
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
        init_timeout: float = 8.0,
        finish_timeout: float = 20.0,
    ) -> None:
        redact = Redactor()
        settings = wandb.Settings(
            init_timeout=init_timeout,
            finish_timeout=finish_timeout,
            finish_timeout_raises=True,
            x_transaction_log_flush_interval=0.5,  # seconds of the series that may be lost with the machine
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
            settings=settings,
        )
        self._wandb_init.pop("anonymous")  # Lightning always passes it, W&B warns of it
        self._files = Path(save_dir) / "wandb"
        self._is_lost = False

    def start_afresh(self) -> None:
        """The next start makes a new W&B run instead of continuing the one of this directory."""
        (self._files / "id").unlink(missing_ok=True)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run; the first access starts or continues it."""
        if self._experiment is None:
            self._wandb_init["id"] = self._run_id()
        try:
            return super().experiment
        except (wandb.Error, OSError) as error:
            if self._offline:
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("W&B cannot be used (%s); the run goes on offline, for `wandb sync` later", reason)
            wandb.teardown()  # what was started holds the id
            self._offline, self._wandb_init["mode"] = True, "offline"
            return super().experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs metrics; not any more if the process that writes for W&B is gone: a scheduler that cancels or preempts a
        job ends it before the run has saved."""
        try:
            super().log_metrics(metrics, step)
        except ConnectionError:
            if not self._is_lost:
                log.warning("the process of W&B is gone; metrics.csv goes on")
            self._is_lost = True

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
