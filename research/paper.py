"""The numbers and settings that Lai et al. (2022) print."""

from typing import Any

from uedp.accounting.published import PublishedMethod

COVERAGE = 0.94  # "the results from spaCy cover over 94% of sensitive information"

# "Breakdown of CONLL-2003, AG, and SEC datasets"; EDGAR stands in for SEC.
COUNTS: dict[str, dict[str, Any]] = {
    "conll": {
        "vocabulary": 8882,
        "sentences": 14040,
        "users": 946,
        "sensitive": {"org": 5187, "loc": 5433, "person": 4406, "misc": 3438, "all": 11176},
    },
    "ag": {
        "vocabulary": 30000,
        "sentences": 112000,
        "users": 7536,
        "sensitive": {"org": 58177, "loc": 39988, "gpe": 18506, "pii": 42683, "all": 67157},
    },
    "edgar": {
        "vocabulary": 12651,
        "sentences": 5188,
        "users": 1592,
        "sensitive": {"org": 1955, "loc": 273, "gpe": 60, "pii": 357, "all": 2166},
    },
}

# Settings of the mechanism.
NOISE = {"gpt": 2.5, "bert": 2.5, "awd-lstm": 2.0}  # z, by model
USER_RATE, ENTITY_RATE = 0.05, 0.5
UPDATE_CLIP = 0.1  # beta
USERS_PER_ROUND = {"conll": 50, "ag": 500, "edgar": 100}  # in the figure of epsilons

# Every epsilon in the text, at z = 2: (data set, method, category, rounds).
EPSILONS = {
    ("conll", PublishedMethod.f_e_plus, "all", 50): 0.52,
    ("conll", PublishedMethod.f_e, "all", 50): 0.62,
    ("conll", PublishedMethod.user, "all", 50): 1.18,
    ("ag", PublishedMethod.f_e_plus, "all", 50): 0.50,
    ("ag", PublishedMethod.f_e, "all", 50): 0.75,
    ("ag", PublishedMethod.user, "all", 50): 1.48,
    ("edgar", PublishedMethod.f_e_plus, "all", 50): 0.40,
    ("edgar", PublishedMethod.f_e, "all", 50): 0.71,
    ("edgar", PublishedMethod.user, "all", 50): 1.40,
    ("edgar", PublishedMethod.f_e_plus, "gpe", 500): 0.19,
    ("edgar", PublishedMethod.f_e_plus, "loc", 500): 0.24,
    ("edgar", PublishedMethod.f_e_plus, "pii", 500): 0.26,
    ("edgar", PublishedMethod.f_e_plus, "org", 500): 0.73,
    ("edgar", PublishedMethod.f_e_plus, "all", 500): 0.81,
    ("edgar", PublishedMethod.user, "all", 500): 4.08,
}

# Perplexities in the text: data set, protected category or other method, published epsilon.
PERPLEXITIES: dict[str, dict[str, dict[str, float]]] = {
    "conll": {
        "person": {"0.185": 35.09, "0.2": 29.24},
        "org": {"0.185": 35.34, "0.2": 29.58},
        "loc": {"0.185": 36.79, "0.2": 29.75},
        "misc": {"0.185": 35.57, "0.2": 29.35},
        "user-level": {"0.185": 52.01, "0.2": 30.15},
        "deidentified": {"": 38.30},
        "noiseless": {"": 27.13},
    },
    "ag": {
        "org": {"0.19": 25.77},
        "loc": {"0.19": 25.33},
        "gpe": {"0.19": 26.01},
        "pii": {"0.19": 25.72},
        "user-level": {"0.19": 36.05},
        "deidentified": {"": 35.90},
        "noiseless": {"": 24.98},
    },
    "edgar": {
        "all": {"0.18": 43.77, "0.19": 21.33},
        "org": {"0.18": 43.70, "0.19": 21.50},
        "loc": {"0.18": 43.21, "0.19": 21.22},
        "gpe": {"0.18": 42.63, "0.19": 20.98},
        "pii": {"0.18": 43.30, "0.19": 21.12},
        "user-level": {"0.18": 583.06, "0.19": 36.07},
        "deidentified": {"": 34.07},
    },
}

ERROR_WITHOUT_EXTENDED = 0.75  # classification at q_s = 0, "in all cases"
LSTM_EXTENDED_RATE = 0.6  # q_s of the AWD-LSTM in classification
