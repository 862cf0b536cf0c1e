"""Excel workbooks."""

import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from uedp.corpus.readers.base import OnError, register_reader, reported_to
from uedp.corpus.records import Columns, listed, sentence_from
from uedp.corpus.sentence import Sentence
from uedp.corpus.source import Source
from uedp.errors import UserError


@register_reader("xlsx", ".xlsx", ".xlsm")
def read_xlsx(source: Source, columns: Columns, on_error: OnError) -> Iterator[Sentence]:
    """The sheet of a workbook that holds rows; the first of them names the columns.

    Rows are read one by one, but the library holds the distinct strings of the workbook.
    """
    with source.path.open("rb") as stream, closing(_opened(source, stream)) as book:
        sheet = _only_sheet(source, book)
        names: list[str] = []
        for number, cells in enumerate(_rows(source, sheet), 1):
            if all(cell is None for cell in cells):
                continue
            if not names:
                names = ["" if cell is None else str(cell).strip() for cell in cells]
                columns.require(f"{source}: row {number}", names)
                continue
            with reported_to(on_error):
                fields = dict(zip(names, (*cells, *[None] * len(names)), strict=False))
                yield sentence_from(f"{source}: row {number}", fields, columns)


def _opened(source: Source, stream: Any) -> Any:
    try:
        import openpyxl
    except ImportError as error:
        raise UserError(
            f"{source}: openpyxl cannot be imported ({error}); run `pip install 'uedp[xlsx]'`, or "
            "save the sheet as CSV"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of styles and the like
            return openpyxl.load_workbook(stream, read_only=True, data_only=True)
    except Exception as error:  # a damaged file can raise almost anything
        raise _damaged(source, error) from None


def _only_sheet(source: Source, book: Any) -> Any:
    filled = []
    for sheet in book.worksheets:
        rows = _rows(source, sheet)
        if any(any(cell is not None for cell in cells) for cells in rows):
            filled.append(sheet)
    if len(filled) > 1:
        raise UserError(
            f"{source}: holds the sheets {listed(sheet.title for sheet in filled)}; save the one "
            "with the texts as a file of its own"
        )
    if not filled:
        raise UserError(f"{source}: holds no rows; check the data")
    return filled[0]


def _rows(source: Source, sheet: Any) -> Iterator[tuple[Any, ...]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sheet.reset_dimensions()  # they may be wrong, and millions
            rows = sheet.iter_rows(values_only=True)
        while True:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = next(rows, None)
            if row is None:
                return
            yield row
    except Exception as error:
        raise _damaged(source, error) from None


def _damaged(source: Source, error: Exception) -> UserError:
    kind = type(error).__name__
    return UserError(f"{source}: not an Excel workbook, or damaged ({kind}); save it again")
