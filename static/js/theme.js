// Runs before the page is painted: the theme somebody chose here, else the system's (that is the sheet's own doing).
(() => {
  "use strict";
  const root = document.documentElement;
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage may be closed to us: then the choice lasts for this page */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const told = () => dispatchEvent(new Event("themechange"));  // charts are drawn with colours they looked up
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", told);
  addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-toggle]")) return;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* as above */ }
    told();
  });
})();
