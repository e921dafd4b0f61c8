// Small helpers of all pages.
"use strict";

(() => {
  // When the pointer is on a field's bytes or on its row, both are highlighted.
  const highlight = (event, on) => {
    const field = event.target.closest?.("[data-field]")?.dataset.field;
    if (field) for (const element of document.querySelectorAll(`[data-field="${field}"]`)) element.classList.toggle("lit", on);
  };
  // A line above the bytes shows the description of the field at the pointer, which is also in the field's row.
  const describe = (event) => {
    const field = event.target.closest?.("[data-field]")?.dataset.field, line = document.querySelector("[data-description]:not(tr)");
    const row = field && document.querySelector(`tr[data-field="${field}"]`);
    if (line && row) line.textContent = row.dataset.description;
  };
  for (const [name, on] of [["mouseover", true], ["focusin", true], ["mouseout", false], ["focusout", false]]) {
    addEventListener(name, (event) => { highlight(event, on); if (on) describe(event); });
  }
  // Arrow keys move the focus from field to field, to its first bytes; Enter follows a link.
  addEventListener("keydown", (event) => {
    const hex = event.target.closest?.("[data-hex]"), step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!hex || !step) return;
    const runs = [...hex.querySelectorAll("[data-first]")], now = runs.indexOf(event.target);
    const next = runs[now < 0 ? (step > 0 ? 0 : runs.length - 1) : now + step];
    if (next) { event.preventDefault(); next.focus(); }
  });
  // Only the fields of the chosen search are shown.
  const way = document.querySelector("select[data-way]");
  if (way) {
    const show = () => { for (const field of document.querySelectorAll("[data-ways]")) field.hidden = !field.dataset.ways.split(" ").includes(way.value); };
    way.addEventListener("change", show);
    show();
  }
  // A click anywhere in a row follows the row's first link.
  addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-row-link]");
    if (row && !event.target.closest("a, button, input") && !String(getSelection())) row.querySelector("a")?.click();
  });
})();
