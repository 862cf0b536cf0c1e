import pytest
import torch

from tests.methods.rounds import CPU, flat, gpt2, method_on, plan, sentence_gradient
from tests.models import tiny
from tests.training import worlds
from uedp.mechanism.sampling import draw_whole
from uedp.methods.randomness import Randomness
from uedp.training.tasks import NextWord


@pytest.mark.parametrize("room", [None, 40])
def test_a_noiseless_round_matches_a_mean_by_hand(room):
    output = plan("noiseless", privacy__seed=1, privacy__user_rate=0.2, run__tokens_at_once=room)
    gradient = method_on(output).round(2)
    with Randomness(output.config.privacy.seed).of_round(2, CPU) as (generator, key, _):
        who = draw_whole(worlds.incidence(), output.sampling, generator, key)
    task, model = NextWord(worlds.texts(), tiny.tokenizer(), 32), gpt2()
    each = [sentence_gradient(model, task, s) for s in who.sentences.values]
    assert torch.allclose(flat(gradient.values), torch.stack(each).mean(0), atol=1e-4, rtol=1e-3)
    assert gradient.stats.sentences == len(each)
