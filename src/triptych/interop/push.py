"""Uploads exported folders to the Hugging Face Hub."""

import os
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError, LocalTokenNotFoundError  # type: ignore[attr-defined]

from triptych.config import RunError


def push_folder(folder: Path, repository: str) -> str:
    """Uploads a folder in one commit and returns its URL.

    Args:
        folder: written by ``save_pretrained``.
        repository: USER/NAME; a new one is private.

    Raises:
        RunError: there is no token, or the Hub refused or could not be reached.
    """
    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))  # of a mirror or a private hub
    try:
        place = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Exported by Triptych")
    except LocalTokenNotFoundError:
        raise RunError(f"--push {repository}: no token; set HF_TOKEN, or `hf auth login`; {folder} is kept") from None
    except (HTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RunError(
            f"--push {repository}: {reason}; {folder} is kept; run the same command again to retry the upload"
        ) from None
    return str(place)
