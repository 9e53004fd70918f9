// Tables of text. Never decides what stands in them.

/** Gives a table's body these rows of texts. */
export function rows(body, table) {
  while (body.rows.length > table.length) body.lastElementChild.remove();
  while (body.rows.length < table.length) body.insertRow();
  table.forEach((cells, number) => {
    const row = body.rows[number];
    while (row.cells.length < cells.length) row.insertCell();
    cells.forEach((text, column) => setText(row.cells[column], text));
  });
}

// Unchanged text is left alone: a live region would otherwise be read out again.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
