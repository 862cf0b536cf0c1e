"""Plans, methods and reference gradients for tests of rounds."""

import contextlib

import numpy as np
import torch

from tests.models import tiny
from tests.training import worlds
from uedp.training.build import build_method
from uedp.training.plan import build_plan
from uedp.training.tasks import NextWord

PRIVATE = ("rotation", "user-level", "uedp-alg")
METHODS = (*PRIVATE, "noiseless", "deidentified")
CPU = torch.device("cpu")


def plan(method: str = "rotation", **changes):
    config = worlds.config("model", privacy__method=method, **changes)
    return build_plan(config, worlds.incidence())


def gpt2(dropout: float = 0.0):
    return tiny.gpt2(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)


def method_on(plan, texts=None, model=None):
    task = NextWord(worlds.texts() if texts is None else texts, tiny.tokenizer(), 32)
    return build_method(plan, worlds.incidence(), model or gpt2(), task, contextlib.nullcontext)


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def sentence_gradient(model, task, sentence):
    loss = task.losses(model, np.array([sentence])).sum()
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    zeros = (torch.zeros_like(p) for p in parameters)
    return flat(z if g is None else g for g, z in zip(found, zeros, strict=True))


def projected(vector, bound: float):
    return vector * min(1.0, bound / max(float(vector.norm()), 1e-30))
