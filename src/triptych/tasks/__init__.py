"""Tasks as LightningModules: what is read, what is scored, what is predicted. The network is given to them."""

from triptych.tasks.base import ClassPrediction, Prediction, Setup, Task
from triptych.tasks.captioning import Captioning
from triptych.tasks.chat import Chat
from triptych.tasks.classification import Classification
from triptych.tasks.denoising import Denoising
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.image_generation import ImageGeneration
from triptych.tasks.image_text_matching import ImageTextMatching
from triptych.tasks.infilling import Infilling
from triptych.tasks.language_modeling import LanguageModeling
from triptych.tasks.question_answering import QuestionAnswering
from triptych.tasks.similarity import Similarity
from triptych.tasks.tagging import Tagging
from triptych.tasks.text_to_text import TextToText
from triptych.tasks.transcription import Transcription
from triptych.tasks.translation import Translation

__all__ = [
    "Captioning",
    "Chat",
    "ClassPrediction",
    "Classification",
    "Denoising",
    "GenerativeTask",
    "ImageGeneration",
    "ImageTextMatching",
    "Infilling",
    "LanguageModeling",
    "Prediction",
    "QuestionAnswering",
    "Setup",
    "Similarity",
    "Tagging",
    "Task",
    "TextToText",
    "Transcription",
    "Translation",
]
