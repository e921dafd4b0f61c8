// Runs before the page is painted, and sets the theme that the user chose; without a choice the style sheet applies the
// system's.
(() => {
  "use strict";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const announce = () => {
    root.classList.toggle("dark-mode", isDark());  // Swagger's style sheet uses this class
    dispatchEvent(new Event("themechange"));  // charts must be drawn again, since they hold colours
  };
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* without access to the storage the choice holds for this page only */ }
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
