"""The categories of sensitive entity, and which detector label means which.

Nineteen base categories of Lai et al. (2022), one of ours (`contact`: the paper speaks of phone
numbers only inside PII), and two unions: `pii`, the paper's twentieth, and `all`.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from uedp.errors import UserError

# The order is the bit order in stored masks: append, never reorder.
BASE: Mapping[str, str] = MappingProxyType(
    {
        "person": "people, including fictional",
        "loc": "non-political locations: mountain ranges, bodies of water, streets",
        "org": "companies, agencies, institutions",
        "misc": "named entities that fit nowhere else, and labels we do not know",
        "gpe": "countries, cities, states",
        "date": "absolute or relative dates or periods",
        "norp": "nationalities, religious or political groups",
        "fac": "buildings, airports, highways, bridges",
        "product": "objects, vehicles, foods; not services",
        "event": "named hurricanes, battles, wars, sports events",
        "law": "named documents made into laws",
        "language": "any named language",
        "work_of_art": "titles of books, songs",
        "time": "times smaller than a day",
        "percent": "percentages, including the sign",
        "money": "monetary values, including the unit",
        "quantity": "measurements, as of weight or distance",
        "ordinal": "first, second",
        "cardinal": "numerals that fall under no other category",
        "contact": "phone, e-mail, postal and network addresses, account and identity numbers",
    }
)

UNIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "pii": frozenset({"person", "loc", "gpe", "contact"}),
        "all": frozenset(BASE),
    }
)

NAMES: tuple[str, ...] = (*BASE, *UNIONS)
_BIT = {name: 1 << position for position, name in enumerate(BASE)}

# One table for every label a known detector or data set emits. spaCy's English pipelines and
# Stanza's OntoNotes models share the eighteen; Stanza's other languages use CoNLL's four.
LABELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "spaCy, Stanza (OntoNotes)": {
            "PERSON": "person",
            "NORP": "norp",
            "FAC": "fac",
            "ORG": "org",
            "GPE": "gpe",
            "LOC": "loc",
            "PRODUCT": "product",
            "EVENT": "event",
            "WORK_OF_ART": "work_of_art",
            "LAW": "law",
            "LANGUAGE": "language",
            "DATE": "date",
            "TIME": "time",
            "PERCENT": "percent",
            "MONEY": "money",
            "QUANTITY": "quantity",
            "ORDINAL": "ordinal",
            "CARDINAL": "cardinal",
        },
        "CoNLL-2003, Stanza (four classes)": {
            "PER": "person",
            "LOC": "loc",
            "ORG": "org",
            "MISC": "misc",
        },
        "spaCy, Stanza (other languages)": {
            # Norwegian
            "GPE_LOC": "gpe",
            "GPE_ORG": "org",
            "PROD": "product",
            "EVT": "event",
            "DRV": "norp",
            # Swedish
            "PRS": "person",
            "INST": "org",
            "PLACE": "loc",
            "WRK": "work_of_art",
            "WORK": "work_of_art",
            "EVN": "event",
            "MSR": "quantity",
            "TME": "time",
            # Polish
            "PERSNAME": "person",
            "PLACENAME": "gpe",
            "GEOGNAME": "loc",
            "ORGNAME": "org",
            # Korean
            "PS": "person",
            "LC": "loc",
            "OG": "org",
            "DT": "date",
            "TI": "time",
            "QT": "quantity",
            # Romanian
            "FACILITY": "fac",
            "DATETIME": "date",
            "NAT_REL_POL": "norp",
            "NUMERIC_VALUE": "cardinal",
            # Ukrainian, Persian, Finnish, and others
            "PERS": "person",
            "PRO": "product",
        },
        "Presidio": {
            "PERSON": "person",
            "LOCATION": "loc",
            "ORGANIZATION": "org",
            "NRP": "norp",
            "DATE_TIME": "date",
            "EMAIL_ADDRESS": "contact",
            "PHONE_NUMBER": "contact",
            "URL": "contact",
            "IP_ADDRESS": "contact",
            "MAC_ADDRESS": "contact",
            "CREDIT_CARD": "contact",
            "CRYPTO": "contact",
            "IBAN_CODE": "contact",
            "MEDICAL_LICENSE": "contact",
            "ID": "contact",
            "AGE": "quantity",
            "US_SSN": "contact",
            "US_ITIN": "contact",
            "US_BANK_NUMBER": "contact",
            "US_DRIVER_LICENSE": "contact",
            "US_PASSPORT": "contact",
            "US_MBI": "contact",
            "UK_NHS": "contact",
            "UK_NINO": "contact",
            "UUID": "contact",
            "ES_NIE": "contact",
            "ES_NIF": "contact",
            "IT_DRIVER_LICENSE": "contact",
            "IT_FISCAL_CODE": "contact",
            "IT_IDENTITY_CARD": "contact",
            "IT_PASSPORT": "contact",
            "IT_VAT_CODE": "contact",
            "PL_PESEL": "contact",
        },
        "Transformers (models for PII)": {
            "GIVENNAME": "person",
            "FIRSTNAME": "person",
            "MIDDLENAME": "person",
            "LASTNAME": "person",
            "SURNAME": "person",
            "USERNAME": "contact",
            "PASSWORD": "contact",
            "TELEPHONENUM": "contact",
            "PHONENUMBER": "contact",
            "STREET": "contact",
            "BUILDINGNUM": "contact",
            "BUILDINGNUMBER": "contact",
            "ZIPCODE": "contact",
            "CITY": "gpe",
            "COUNTY": "gpe",
            "STATE": "gpe",
            "COUNTRY": "gpe",
            "SOCIALNUM": "contact",
            "IDCARDNUM": "contact",
            "DRIVERLICENSENUM": "contact",
            "TAXNUM": "contact",
            "ACCOUNTNUM": "contact",
            "ACCOUNTNUMBER": "contact",
            "CREDITCARDNUMBER": "contact",
            "DATEOFBIRTH": "date",
            "DOB": "date",
        },
        "presidio-research marks": {
            "STREET_ADDRESS": "contact",
            "ADDRESS": "contact",
            "ZIP_CODE": "contact",
            "DOMAIN_NAME": "contact",
            "TITLE": "person",
        },
        "patterns": {
            "EMAIL": "contact",
            "PHONE": "contact",
            "IBAN": "contact",
            "CARD": "contact",
            "IP": "contact",
            "URL": "contact",
            "SSN": "contact",
            "ACCOUNT": "contact",
            "DATE": "date",
            "TIME": "time",
            "MONEY": "money",
            "PERCENT": "percent",
        },
    }
)

_CATEGORY = {label: category for table in LABELS.values() for label, category in table.items()}


def category_of(label: str) -> str:
    """The base category of a detector's label.

    Guarantees:
      - total: a label nobody listed is `misc`, so that an unforeseen entity is protected
      - a base category's own name, in any case, means itself
    """
    upper = label.upper()
    known = _CATEGORY.get(upper)
    if known is not None:
        return known
    return upper.lower() if upper.lower() in BASE else "misc"


def expand_categories(names: str | Iterable[str]) -> frozenset[str]:
    """The base categories that names, given as a list or separated by commas, stand for."""
    chosen: set[str] = set()
    for name in names.split(",") if isinstance(names, str) else names:
        key = name.strip().lower()
        if key in UNIONS:
            chosen |= UNIONS[key]
        elif key in BASE:
            chosen.add(key)
        else:
            raise UserError(
                f"`categories={name!r}`: unknown category; choose among {', '.join(NAMES)}"
            )
    if not chosen:
        raise UserError("`categories=...` is empty; name at least one category, or `all`")
    return frozenset(chosen)


def mask_of(categories: Iterable[str]) -> int:
    """Base categories as a bit mask (bit i is the i-th name of `BASE`)."""
    mask = 0
    for category in categories:
        mask |= _BIT[category]
    return mask


def masks() -> dict[str, int]:
    """The bit mask of every name, unions included."""
    return {**_BIT, **{name: mask_of(members) for name, members in UNIONS.items()}}
