"use strict";
const root = document.documentElement;

// The theme: what the system says, or what the reader chose. A page from a file may have nowhere to keep it.
const themes = ["auto", "light", "dark"];
const button = document.getElementById("theme");
function setTheme(theme) {
  if (theme === "auto") root.removeAttribute("data-theme");
  else root.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  try { localStorage.setItem("fusioncache-theme", theme); } catch { /* it holds for this visit */ }
}
let theme = "auto";
try { theme = localStorage.getItem("fusioncache-theme") ?? "auto"; } catch { /* as above */ }
if (!themes.includes(theme)) theme = "auto";
setTheme(theme);
button.hidden = false;
button.addEventListener("click", () => {
  theme = themes[(themes.indexOf(theme) + 1) % themes.length];
  setTheme(theme);
});

// A link opens what it leads to.
function show() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let element = target; element; element = element.parentElement) {
    if (element.tagName === "DETAILS") element.open = true;
  }
  target.scrollIntoView({ block: target.matches(".map .cell, tr") ? "center" : "start", inline: "nearest" });
  if (target.matches(".map .cell")) target.focus({ preventScroll: true });
  else if (target.matches(".template")) target.querySelector("summary").focus({ preventScroll: true });
}
window.addEventListener("hashchange", show);
// A link to where one is already is no change of the hash, and is followed all the same.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) show();
});
show();

// The map: what a cell is about stands below, its like are outlined, and arrow keys move.
const panel = document.getElementById("panel");
const cells = [...document.querySelectorAll(".map .cell")];
function row(cell) {
  return document.getElementById(`r${cell.dataset.r}`);
}
function tell(cell) {
  for (const other of cells) other.classList.toggle("same", "t" in cell.dataset && other.dataset.t === cell.dataset.t);
  const list = document.createElement("dl");
  const heads = row(cell).closest("table").querySelectorAll("thead th");
  const fields = [...row(cell).children].map((field, place) => [heads[place].textContent, field]);
  const miss = document.getElementById(`m${cell.dataset.t}`);
  const [template, nearest] = miss ? miss.querySelectorAll(".link") : [];
  if (template) fields.unshift(["template", template]);
  if (cell.classList.contains("first") && nearest) fields.push(["nearest", nearest]);
  if (cell.classList.contains("first")) fields.push(["why new", miss.querySelector(".why")]);
  for (const [name, field] of fields) {
    const item = document.createElement("div");
    item.appendChild(document.createElement("dt")).textContent = name;
    const value = item.appendChild(document.createElement("dd"));
    if (field.matches(".link")) value.append(field.cloneNode(true));
    else value.append(...[...field.childNodes].map((node) => node.cloneNode(true)));
    list.append(item);
  }
  const title = document.createElement("b");
  title.textContent = cell.getAttribute("aria-label").split(":")[0];
  panel.replaceChildren(title, list);
}
const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function ahead(cell, [across, down]) {
  const here = cell.getBoundingClientRect();
  const x = here.left + here.width / 2;
  const y = here.top + here.height / 2;
  let best = null;
  let least = Infinity;
  for (const other of cell.closest("table").querySelectorAll(".cell")) {
    const box = other.getBoundingClientRect();
    const dx = box.left + box.width / 2 - x;
    const dy = box.top + box.height / 2 - y;
    const along = across * dx + down * dy;
    const aside = Math.abs(across ? dy : dx);
    const cost = along + 3 * aside;
    if (along > 1 && (down || aside < 2) && cost < least) [best, least] = [other, cost];
  }
  return best;
}
function visit(cell) {
  for (const other of cell.closest("table").querySelectorAll(".cell")) other.tabIndex = other === cell ? 0 : -1;
  cell.focus();
}
if (cells.length) {
  panel.hidden = false;
  panel.textContent = "Point at a cell, or move to it, to see which region it is.";
  for (const table of document.querySelectorAll(".map")) {
    table.querySelectorAll(".cell").forEach((cell, place) => { cell.tabIndex = place ? -1 : 0; });
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest(".cell");
      const inRow = cell ? [...cell.closest("tr").querySelectorAll(".cell")] : [];
      const next = event.key === "Home" ? inRow[0] : event.key === "End" ? inRow.at(-1)
        : cell && steps[event.key] ? ahead(cell, steps[event.key]) : null;
      if (!next) return;
      event.preventDefault();
      visit(next);
    });
    for (const kind of ["mouseover", "focusin"]) {
      table.addEventListener(kind, (event) => {
        const cell = event.target.closest(".cell");
        if (cell) tell(cell);
      });
    }
  }
}
