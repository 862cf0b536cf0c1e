"""The Entities page: browse the corpus, correct what is protected, see what that costs."""

import threading
from dataclasses import asdict
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from uedp.entities.categories import BASE
from uedp.entities.lists import PUBLIC_LISTS
from uedp.entities.words import words
from uedp.errors import UserError
from uedp.studio.browse import LISTED, PER_PAGE, Mention, SentenceFilter, View, visible
from uedp.studio.draft import Draft
from uedp.studio.list_files import KINDS, lists_folder
from uedp.studio.pages import form, page
from uedp.studio.protection import command
from uedp.studio.settings import ForbiddenError, Settings

_TOP = 12  # entities in the side list
_OTHERS = 100  # entities of a category to merge another with
_WORDS = 200  # of a sentence, to choose from when marking a miss


class EntitiesPage:
    """The page of one studio; the corpus is opened when it is first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._draft: Draft | None = None

    def routes(self) -> list[Route]:
        if self._settings.corpus is None:
            return [Route("/entities", self._without_corpus)]
        return [
            Route("/entities", self._show),
            Route("/entities/state", self._state),
            Route("/entities/mention", self._mention),
            Route("/entities/miss", self._miss),
            Route("/entities/{change}", self._change, methods=["POST"]),
        ]

    def close(self) -> None:
        if self._draft is not None:
            self._draft.close()

    @property
    def draft(self) -> Draft:
        with self._lock:
            if self._draft is None:
                assert self._settings.corpus is not None
                self._draft = Draft(self._settings.corpus)
        self._draft.refresh()
        return self._draft

    # Functions that are not `async` run in threads, so that they do not hold up other requests.

    def _without_corpus(self, request: Request) -> Response:
        return page(self._settings, "no_corpus.html", section="entities")

    def _show(self, request: Request) -> Response:
        """The page; with `part`, only its panel of changes or its list."""
        draft, query = self.draft, request.query_params
        chosen = filter_of(query)
        part = query.get("part")
        if part not in (None, "panel", "results"):
            raise HTTPException(404)
        values: dict[str, Any] = {"draft": draft, "chosen": chosen}
        # the panel first: a list that is newer than its version is read again, an older one is not
        if part != "results":
            values |= self._panel(draft)
        if part != "panel":
            values |= self._results(draft.view, chosen, _number(query.get("page")) or 1)
        values["query"] = chosen.query(page=values.get("page", 1))
        template = {None: "entities.html", "panel": "panel.html", "results": "results.html"}[part]
        return page(self._settings, template, section="entities", **values)

    def _results(self, view: View, chosen: SentenceFilter, number: int) -> dict[str, Any]:
        fitting = view.select(chosen)
        pages = max(-(-len(fitting) // PER_PAGE), 1)
        number = min(number, pages)
        shown = fitting[(number - 1) * PER_PAGE : number * PER_PAGE]
        numbers = view.table.select(chosen.category or None, chosen.doubtful, chosen.find or None)
        top = view.entity_rows(numbers[:_TOP])
        names = [view.name_of(int(each)) for each in numbers[:_TOP]]
        return {
            "sentences": view.sentences(shown, whole=chosen.sentence is not None),
            "total": len(fitting),
            "page": number,
            "pages": pages,
            "entities": list(zip(names, top, strict=True)),
            "entities_total": len(numbers),
            "of_entity": self._entity(view, chosen.entity),
        }

    @staticmethod
    def _entity(view: View, name: str) -> Any:
        number = view.numbers.get(name) if name else None
        return None if number is None else view.entity_rows([number])[0]

    def _panel(self, draft: Draft) -> dict[str, Any]:
        corpus, choice = draft.base.corpus, draft.choice
        counts = category_counts(draft.base)
        return {
            "categories": [(name, words, counts[name]) for name, words in BASE.items()],
            "detectors": corpus.detectors,
            "shipped": PUBLIC_LISTS,
            "listed": LISTED,
            "corpus": corpus,
            "command": command(draft.folder, draft.applied, choice),
            "changes": changes(draft),
            "locked": draft.changed and draft.locked_by_a_run(),
            "lists_folder": lists_folder(draft.folder),
            "runs": _earlier_runs(draft),
            "progressed": draft.progressed,
        }

    def _state(self, request: Request) -> Response:
        return JSONResponse(asdict(self.draft.progressed))

    def _mention(self, request: Request) -> Response:
        """What is known of one mention, and what can be said about it."""
        view, query = self.draft.view, request.query_params
        mention = None
        if query.get("entity"):
            number = view.numbers.get(query["entity"])
        else:
            mention = _find(view, _number(query.get("sentence")), _number(query.get("index")))
            number = mention.entity
        if number is None:
            raise HTTPException(404)
        entity = view.entity_rows([number])[0]
        surface = mention.surface if mention else entity.surface
        return page(
            self._settings,
            "mention.html",
            mention=mention,
            surface=visible(surface),
            raw=surface,
            name=view.name_of(number),
            entity=entity,
            doubtful=bool(view.doubtful[number]),
            others=view.entity_rows(view.table.select(entity.category)[:_OTHERS]),
            draft=self.draft,
        )

    def _miss(self, request: Request) -> Response:
        """The form to mark words of a sentence that should have been found."""
        view = self.draft.view
        sentence = _number(request.query_params.get("sentence"))
        text = _text(view, sentence)
        found = dict.fromkeys(text[a:b] for _, a, b in words(text[:10_000]))
        return page(
            self._settings,
            "miss.html",
            text=request.query_params.get("text", "").strip(),
            words=list(found)[:_WORDS],
            categories=BASE,
            draft=self.draft,
        )

    async def _change(self, request: Request) -> Response:
        """Everything that changes the draft or the corpus."""
        fields = await form(request)
        change = request.path_params["change"]

        def one(name: str) -> str:
            return fields.get(name, [""])[0]

        def apply_change() -> None:
            draft = self.draft
            if change == "list" and one("kind") in KINDS:
                draft.add(one("kind"), one("entry"), one("meaning"))
            elif change == "unlist" and one("kind") in KINDS:
                draft.remove(one("kind"), one("entry"))
            elif change == "protect":
                draft.protect(
                    frozenset(fields.get("category", ())),
                    frozenset(fields.get("detector", ())),
                    tuple(fields.get("shipped", ())),
                    bool(one("propagate")),
                )
            elif change in ("undo", "discard", "apply"):
                getattr(draft, change)()
            else:
                raise HTTPException(404)

        await run_in_threadpool(apply_change)
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(asdict(self.draft.progressed))
        back = one("back")
        if back and not back.startswith("?"):
            raise ForbiddenError("an address outside of the page")
        return RedirectResponse(f"{self._settings.root}/entities{back}", 303)


def filter_of(query: Any) -> SentenceFilter:
    """The filter that an address asks for."""
    return SentenceFilter(
        find=query.get("find", "").strip(),
        category=query.get("category", "") if query.get("category") in BASE else "",
        detector=query.get("detector", ""),
        entity=query.get("entity", ""),
        doubtful=bool(query.get("doubtful")),
        show=query.get("show", "") if query.get("show") in ("with", "without") else "",
        sentence=_number(query.get("sentence")),
    )


def category_counts(view: View) -> dict[str, int]:
    """Mentions by category."""
    counts = np.bincount(view.category, minlength=len(BASE))
    return dict(zip(BASE, map(int, counts), strict=True))


def changes(draft: Draft) -> list[dict[str, Any]]:
    """What differs from the corpus, in words, each with what takes it back."""
    result: list[dict[str, Any]] = []
    old, new = draft.applied.lists, draft.choice.lists
    verbs = {
        "public": "“{}” is public: {}",
        "sensitive": "“{}” is always protected, as {}",
        "aliases": "“{}” is the same entity as “{}”",
    }
    for kind, verb in verbs.items():
        before, after = getattr(old, kind), getattr(new, kind)
        for entry, meaning in after.items():
            if before.get(entry) != meaning:
                text = verb.format(visible(entry), visible(meaning))
                result.append({"text": text, "kind": kind, "entry": entry})
        result += [
            {"text": f"no longer: {verb.format(visible(e), visible(m))}"}
            for e, m in before.items()
            if e not in after
        ]
    for what, one, other in (
        ("category", draft.applied.categories, draft.choice.categories),
        ("detector", draft.applied.detectors, draft.choice.detectors),
        ("public list", frozenset(old.shipped), frozenset(new.shipped)),
    ):
        result += [{"text": f"{what} {name} off"} for name in sorted(one - other)]
        result += [{"text": f"{what} {name} on"} for name in sorted(other - one)]
    if draft.choice.propagate != draft.applied.propagate:
        state = "on" if draft.choice.propagate else "off"
        result.append({"text": f"names in places where no detector found them: {state}"})
    return result


def _earlier_runs(draft: Draft) -> int:
    from uedp.accounting.ledger import CorpusLedger  # takes a second

    ledger = CorpusLedger(draft.folder)
    if not draft.changed or not ledger.path.is_file():
        return 0
    try:
        return len(ledger.entries())
    except UserError:  # it is being written
        return 0


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _text(view: View, sentence: int | None) -> str:
    if sentence is None or sentence >= len(view):
        raise HTTPException(404)
    return view.corpus.texts([sentence])[0]


def _find(view: View, sentence: int | None, index: int | None) -> Mention:
    text = _text(view, sentence)
    mentions = view.mentions(sentence or 0, text)
    if index is None or index >= len(mentions):
        raise HTTPException(404)
    return mentions[index]
