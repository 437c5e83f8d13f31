// Tables that sort, the choice of theme, folds: what works without is there without; scripts add the rest.

// ---- tables ----

/** What a cell is sorted by: a number, a text, or null if it is empty. */
function sortValue(cell) {
  const said = cell.dataset.value ?? cell.textContent.trim();
  if (said === "") return null;
  const number = Number(said);
  return Number.isNaN(number) ? said.toLowerCase() : number;
}

/** Which of two goes first, ascending: numbers before texts; what is empty is always last. */
function compareValues(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one !== typeof other) return sign * (typeof one === "number" ? -1 : 1);
  if (typeof one === "number") return sign * (one - other);
  return sign * (one < other ? -1 : one > other ? 1 : 0);
}

/** Sort by a column; rows that are alike stay in the order that the report gave them. */
function sortBy(table, head, original) {
  const at = head.cellIndex;
  const first = head.classList.contains("number") || head.classList.contains("bar") ? "descending" : "ascending";
  const was = head.getAttribute("aria-sort");
  const now = was === null ? first : was === "ascending" ? "descending" : "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", now);
  const sign = now === "ascending" ? 1 : -1;
  const keyed = original.map((row, place) => ({ row, place, value: sortValue(row.cells[at]) }));
  keyed.sort((one, other) => compareValues(one.value, other.value, sign) || one.place - other.place);
  table.tBodies[0].append(...keyed.map((one) => one.row));
}

function makeSortable(table) {
  const original = [...table.tBodies[0].rows];
  if (original.length < 2) return;
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    if (head.title) button.title = head.title;
    head.replaceChildren(button);
    button.addEventListener("click", () => sortBy(table, head, original));
  }
}

// ---- theme ----

const root = document.documentElement;
const darkness = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : darkness.matches;
}

function tellTheme() {
  const button = document.getElementById("theme");
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Show the report in ${isDark() ? "light" : "dark"} colours`);
  document.dispatchEvent(new Event("themechange"));
}

function offerThemes() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tellTheme();
  });
  darkness.addEventListener("change", tellTheme);
  tellTheme();
}

// ---- folds ----

function offerUnfolding() {
  const button = document.getElementById("unfold");
  const folds = () => [...document.querySelectorAll("details")];
  button.hidden = folds().length === 0;
  button.addEventListener("click", () => {
    const unfold = folds().some((fold) => !fold.open);
    for (const fold of folds()) fold.open = unfold;
    button.textContent = unfold ? "Fold all" : "Unfold all";
  });
}

/** A link to a finding opens it, and what it lies in. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
}

/** On paper everything is unfolded and light; afterwards it is as it was. */
function printWhole() {
  let closed = [];
  let theme;
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const fold of closed) fold.open = true;
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    document.dispatchEvent(new Event("themechange"));
  });
  addEventListener("afterprint", () => {
    for (const fold of closed) fold.open = false;
    if (theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = theme;
    document.dispatchEvent(new Event("themechange"));
  });
}

for (const table of document.querySelectorAll("main table")) makeSortable(table);
offerThemes();
offerUnfolding();
printWhole();
addEventListener("hashchange", openTarget);
openTarget();
