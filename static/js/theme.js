// Runs before the page is painted: the theme chosen here, else the system's (which the style sheet applies).
(() => {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const announce = () => {
    root.classList.toggle("dark-mode", isDark());  // for Swagger, whose sheet goes by it
    dispatchEvent(new Event("themechange"));  // charts are drawn with colours they looked up
  };
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage may be closed to us: then the choice lasts for this page */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  announce();
  system.addEventListener("change", announce);
  addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-toggle]")) return;
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* as above */ }
    announce();
  });
})();
