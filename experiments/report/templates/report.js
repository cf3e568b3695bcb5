"use strict";
const specs = JSON.parse(document.getElementById("specs").textContent);
const options = { actions: false, renderer: "svg" };

function draw(place, name) {
  const spec = specs[name];
  if (!spec) return false;
  vegaEmbed(place, spec, options).then(() => { place.dataset.drawn = name; });
  return true;
}

for (const place of document.querySelectorAll("[data-figure]")) draw(place, place.dataset.figure);

const choice = document.getElementById("case");
function showCase() {
  for (const article of document.querySelectorAll("[data-section]")) {
    article.hidden = false;
    article.hidden = !draw(article.querySelector(".figure"), `${choice.value}-${article.dataset.section}`);
  }
  for (const words of document.querySelectorAll("[data-case]")) words.hidden = words.dataset.case !== choice.value;
}
if (choice) {
  choice.addEventListener("change", showCase);
  showCase();
}

const table = document.getElementById("runs");
const heads = [...table.tHead.rows[0].cells];
const numbers = heads.map((head) => head.classList.contains("number"));
function sortBy(column) {
  const up = heads[column].getAttribute("aria-sort") !== "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => row.cells[column].dataset.value;
  const order = (a, b) => (numbers[column] ? Number(a) - Number(b) : a.localeCompare(b));
  const rows = [...table.tBodies[0].rows];
  // Rows without a value stay at the end, whichever way the others go.
  rows.sort((a, b) => (value(a) === "") - (value(b) === "") || (up ? 1 : -1) * order(value(a), value(b)));
  table.tBodies[0].append(...rows);
}
heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => sortBy(column)));
