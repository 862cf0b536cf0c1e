"""Names for the sample corpus, read from `words.yaml`. People and organisations are invented."""

from importlib.resources import files

import yaml

_LISTS: dict[str, list[str]] = yaml.safe_load(
    files(__package__).joinpath("words.yaml").read_text(encoding="utf-8")
)

FIRST_NAMES = tuple(_LISTS["first_names"])
LAST_NAMES = tuple(_LISTS["last_names"])
CITIES = tuple(_LISTS["cities"])
EMPLOYERS = tuple(_LISTS["employers"])
CLIENT_STEMS = tuple(_LISTS["client_stems"])
CLIENT_TRADES = tuple(_LISTS["client_trades"])
CARRIERS = tuple(_LISTS["carriers"])
HOTELS = tuple(_LISTS["hotels"])
VENDORS = tuple(_LISTS["vendors"])
AGENCIES = tuple(_LISTS["agencies"])
AREA_CODES = tuple(_LISTS["area_codes"])
MAILBOXES = tuple(_LISTS["mailboxes"])
