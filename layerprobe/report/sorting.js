"use strict";

// Rows that a reader sorts by any column. A column has a key, a name, whether it holds numbers, and the number of a row
// that it is sorted by; what is chosen are a key and whether the smallest is first.
Object.assign(window.layerprobe, (() => {
  const { html } = window.layerprobe;

  // Rows in the order of a column, those without a number last; equal ones as they were.
  const sorted = (rows, columns, { key, up }) => {
    const column = columns.find((one) => one.key === key);
    if (!column) return rows;
    return [...rows].sort((a, b) => {
      const [first, second] = [column.of(a), column.of(b)];
      if (first === null || second === null) return (first === null) - (second === null);
      return (up ? 1 : -1) * (first - second);
    });
  };

  // The row of heads, whose buttons call `choose`; numbers start with the largest. `mark` gives the mark of a key, if any.
  const heads = (columns, chosen, choose, { id, mark = () => "" }) => html("tr", {}, ...columns.map(({ key, name, number }) => {
    const isChosen = key === chosen.key, arrow = isChosen ? (chosen.up ? " ▲" : " ▼") : " ↕";
    return html("th", { scope: "col", class: number ? "number" : null, "aria-sort": isChosen ? (chosen.up ? "ascending" : "descending") : null },
      html("button", { type: "button", id: `${id}-${key}`, onclick: () => choose({ key, up: isChosen ? !chosen.up : !number }) },
        name, mark(key) ? html("sup", {}, mark(key)) : null, html("span", { class: "arrow", "aria-hidden": "true" }, arrow)));
  }));

  return { sorted, heads };
})());
