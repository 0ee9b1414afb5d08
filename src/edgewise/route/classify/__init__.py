"""A local classifier of tasks: learned from labelled texts, with its accuracy as evidence."""

from edgewise.route.classify.asking import TaskClassifier, classified
from edgewise.route.classify.cases import CASE_HINT, TaskCase, parse_task_cases
from edgewise.route.classify.evidence import (
    CLASSIFIER_KIND,
    ClassifierEvidence,
    ClassifierReport,
    LearnSettings,
    TaskShown,
    read_classifier,
)
from edgewise.route.classify.learning import learn_tasks
from edgewise.route.classify.model import MODEL_BYTES_MAX, TaskModel

__all__ = [
    "CASE_HINT",
    "CLASSIFIER_KIND",
    "MODEL_BYTES_MAX",
    "ClassifierEvidence",
    "ClassifierReport",
    "LearnSettings",
    "TaskCase",
    "TaskClassifier",
    "TaskModel",
    "TaskShown",
    "classified",
    "learn_tasks",
    "parse_task_cases",
    "read_classifier",
]
