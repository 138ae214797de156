"""Tasks: how examples are encoded for a network, the loss and metrics, and the predictions."""

from triptych.tasks.captioning import Captioning
from triptych.tasks.chat import Chat
from triptych.tasks.classification import Classification
from triptych.tasks.denoising import Denoising
from triptych.tasks.generative import GenerativeTask
from triptych.tasks.image_generation import ImageGeneration
from triptych.tasks.image_text_matching import ImageTextMatching
from triptych.tasks.infilling import Infilling
from triptych.tasks.language_modeling import LanguageModeling
from triptych.tasks.likelihood import TextScore, TextTooLongError
from triptych.tasks.predictions import Candidate, ClassPrediction, Prediction, Predictions, TestPrediction
from triptych.tasks.predictor import Predictor
from triptych.tasks.question_answering import QuestionAnswering
from triptych.tasks.sequence import SequenceTask
from triptych.tasks.similarity import Similarity
from triptych.tasks.tagging import Tagging
from triptych.tasks.task import Task, TaskContext
from triptych.tasks.text_to_text import TextToText
from triptych.tasks.transcription import Transcription
from triptych.tasks.translation import Translation

__all__ = [
    "Candidate",
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
    "Predictions",
    "Predictor",
    "QuestionAnswering",
    "SequenceTask",
    "Similarity",
    "Tagging",
    "Task",
    "TaskContext",
    "TestPrediction",
    "TextScore",
    "TextToText",
    "TextTooLongError",
    "Transcription",
    "Translation",
]
