// Small conveniences that every page may use.
"use strict";

(() => {
  // Hover over a field's bytes or its row: both light up.
  const light = (event, on) => {
    const field = event.target.closest?.("[data-field]")?.dataset.field;
    if (field) for (const element of document.querySelectorAll(`[data-field="${field}"]`)) element.classList.toggle("lit", on);
  };
  addEventListener("mouseover", (event) => light(event, true));
  addEventListener("mouseout", (event) => light(event, false));
  // Only the fields of the chosen search are shown.
  const way = document.querySelector("select[data-way]");
  if (way) {
    const show = () => { for (const field of document.querySelectorAll("[data-ways]")) field.hidden = !field.dataset.ways.split(" ").includes(way.value); };
    way.addEventListener("change", show);
    show();
  }
  // A whole row leads where its first link leads.
  addEventListener("click", (event) => {
    const row = event.target.closest?.("tr[data-row-link]");
    if (row && !event.target.closest("a, button, input") && !String(getSelection())) row.querySelector("a")?.click();
  });
})();
