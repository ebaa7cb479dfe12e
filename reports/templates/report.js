"use strict";
// Lets a reader sort and filter the tables. Everything can be read without it, and it makes its own controls.
(() => {
  const NUMBER = /^[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?/i;
  const WORDS = { infinite: Infinity, "minus infinite": -Infinity };

  const shown = (row, column) => row.cells[column].textContent.trim();

  const numberOf = (text) => {
    if (Object.hasOwn(WORDS, text)) return WORDS[text];
    const found = NUMBER.exec(text);
    return found ? Number(found[0].replaceAll(",", "")) : null;
  };

  // Numbers by size, other texts by letter; what has no figure comes last either way.
  const compare = (one, other, descending) => {
    const [x, y] = [numberOf(one), numberOf(other)];
    if (x === null && y === null) return one.localeCompare(other) * (descending ? -1 : 1);
    if (x === null || y === null) return x === null ? 1 : -1;
    return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1);
  };

  const sort = (table, heading) => {
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const each of heading.parentElement.cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = table.tBodies[0];
    const column = heading.cellIndex;
    const rows = [...body.rows].sort((one, other) => compare(shown(one, column), shown(other, column), descending));
    body.append(...rows);
  };

  const makeSortable = (table) => {
    for (const heading of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading));
      heading.append(button);
    }
  };

  const makeFilter = (part) => {
    const noun = part.dataset.filter;
    const items = [...part.querySelectorAll(part.querySelector(".check") ? ".check" : "tbody > tr")];
    if (items.length < 2) return;
    const control = document.createElement("p");
    const label = document.createElement("label");
    const field = document.createElement("input");
    const count = document.createElement("span");
    control.className = "filter";
    field.type = "search";
    count.setAttribute("role", "status");
    label.append(`Filter ${noun} `, field);
    control.append(label, " ", count);
    const apply = () => {
      const wanted = field.value.trim().toLowerCase();
      let left = 0;
      for (const item of items) {
        const matches = item.textContent.toLowerCase().includes(wanted);
        item.classList.toggle("filtered", !matches);
        left += matches;
      }
      for (const group of part.querySelectorAll("section:has(.check)")) {
        group.classList.toggle("filtered", !group.querySelector(".check:not(.filtered)"));
        for (const each of group.querySelectorAll(":scope > details")) each.open = Boolean(wanted);
      }
      count.textContent = wanted ? `${left} of ${items.length} listed ${noun}` : "";
    };
    field.addEventListener("input", apply);
    part.prepend(control);
  };

  for (const table of document.querySelectorAll("table.sortable")) makeSortable(table);
  for (const part of document.querySelectorAll("[data-filter]")) makeFilter(part);

  // Within a text the arrow keys go from token to token, so that Tab need not stop at each.
  addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const here = event.target.closest("blockquote [data-said]");
    if (!step || !here) return;
    const tokens = [...here.closest("blockquote").querySelectorAll("[data-said]")];
    const next = tokens[tokens.indexOf(here) + step];
    if (!next) return;
    if (!next.href) next.tabIndex = -1;
    next.focus();
    event.preventDefault();
  });

  // A link to a folded part opens it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  if (location.hash) unfold();

  // Nothing folded is lost on paper.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const each of folded) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of folded) each.open = false;
  });
})();
