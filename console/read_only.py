"""What every page has in common: it reads. Whatever writes is a POST of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from unfold.admin import ModelAdmin

# A longer list is narrowed by search, not leafed through; nothing larger is ever counted.
ROWS_MAX = 5_000


class BoundedPaginator(Paginator[Any]):
    """Counts no further than `ROWS_MAX`, so that a list of millions opens as fast as one of ten."""

    @cached_property
    def count(self) -> int:
        """How many rows there are, or `ROWS_MAX`."""
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows.order_by()[:ROWS_MAX].count()


class OnlyItsFilters(ModelAdmin):  # type: ignore[misc]
    """A list that is narrowed by its own filters and by nothing else that stands in an address.

    Django would take every lookup of every column: scans, and patterns that Postgres refuses.
    """

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Whether this part of the address is a filter of the list. Answered 400 if not."""
        known = {getattr(each, "parameter_name", each) for each in self.list_filter}
        name = lookup.removesuffix("__exact").removesuffix("__id")
        return name in known and "\x00" not in str(value)


class ReadOnlyAdmin(OnlyItsFilters):
    """A list and a page that show rows. Nothing is added, changed or deleted by them.

    `exact_search` names the fields a search term is compared with, one indexed query after the
    other; the first that finds something is the answer. There is no search by part of a word.
    """

    exact_search: ClassVar[tuple[str, ...]] = ()

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 50
    ordering = ("-pk",)
    # Sorting a large table by any column is a scan; the newest come first.
    sortable_by = ()
    actions = None
    list_fullwidth = True

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds a row here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes a row here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes a row here."""
        return False

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """Named so that the page shows a search box; `get_search_results` does the work."""
        return self.exact_search

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Rows where one of `exact_search` is exactly the term."""
        term = search_term.strip()
        if not term:
            return queryset, False
        for field in self.exact_search:
            found = queryset.filter(**{field: term})
            if found.exists():
                return found, False
        return queryset.none(), False


class WithContext(ModelAdmin):  # type: ignore[misc]
    """A mixin: a row's page has a template of its own above the row, and this is what it shows."""

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What the template needs, for whoever may see the row."""
        raise NotImplementedError

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """The row under its template."""
        row = self.get_object(request, object_id)
        if row is not None and self.has_view_permission(request, row):
            extra_context = self.page_context(request, row) | (extra_context or {})
        found: HttpResponse = super().change_view(request, object_id, form_url, extra_context)
        return found
