"""Money and percentages."""

from uedp.entities.detectors.forms import BEGIN, END, finder

_NUMBER = r"[0-9]++(?:[.,'][0-9]++)*+"
_SCALE = (
    r"(?:\ ?(?i:hundred|thousand|million|billion|trillion|lakh|crore|mln|mn|bn|tn)(?![A-Za-z])"
    r"|[kKmMbB](?![A-Za-z]))"
)
_SIGNS = "$€£¥₹₽₩₪₺₴₫₦฿"
_CODES = (
    "USD|EUR|GBP|JPY|CHF|CAD|AUD|NZD|CNY|RMB|HKD|SGD|INR|KRW|SEK|NOK|DKK|ISK|PLN|CZK|HUF|RON|"
    "BGN|TRY|RUB|UAH|ILS|ZAR|BRL|MXN|ARS|CLP|COP|AED|SAR|EGP|NGN|KES|THB|IDR|MYR|PHP|VND|TWD|PKR"
)
_UNITS = (
    r"(?i:dollars?|euros?|pounds?(?:\ sterling)?|cents?|pence|yen|yuan|renminbi|rupees?|roubles?|"
    r"rubles?|pesos?|francs?|kron(?:a|or|er|e)|zlotys?|złotych|forints?|lira|shekels?|dinars?|"
    r"dirhams?|riyals?|ringgit|baht|rand|naira|bucks|quid)"
)
_AMOUNT = rf"{_NUMBER}(?:-{_NUMBER})?{_SCALE}?"

# `#36;` is the dollar of a text that lost its HTML. A dash and more digits would be a phone number
# or the like after a currency's name.
signed_money = finder(
    rf"""(?: (?:{BEGIN}[A-Z]{{1,3}})? (?:[{_SIGNS}]|&?\#36;) | {BEGIN}(?:{_CODES}|Rs\.?) )
    \ ?{_AMOUNT} (?: \ ?(?:{_UNITS}|{_CODES})(?![A-Za-z]|\ [0-9]) )?
    (?![0-9A-Za-z]|(?<=[0-9])-[0-9])""",
    # A sign; or a code or `Rs` and a digit.
    gate=rf"[A-Z{_SIGNS}\#](?: (?<![A-Z]) | (?:[A-Z]{{2}}|(?<=R)s\.?)\ ?[0-9] )",
)
named_money = finder(
    rf"{BEGIN}(?<![0-9][-.,']) {_AMOUNT} \ ?(?: (?:{_UNITS}|{_CODES}){END} | [{_SIGNS}](?![0-9]) )",
    gate=rf"[0-9](?![0-9.,]){_SCALE}?\ ?(?: {_UNITS} | {_CODES} | [{_SIGNS}] )",
)
percent = finder(
    rf"{BEGIN}(?<![0-9][.,/]) [0-9]++(?:[.,/][0-9]++)*+ \ ?(?:%|(?i:per\ ?cent|pct){END})",
    gate=r"[0-9]\ ?[%Pp]",
)
