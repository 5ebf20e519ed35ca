"use strict";
// Sorts a table by the clicked column; a second click reverses the order. Unknown values stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const isNumber = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const sign = before === null ? (isNumber ? -1 : 1) : before === "ascending" ? -1 : 1;
    const key = (row) => row.cells[column].dataset.key;
    const compare = (a, b) => isNumber ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...table.tBodies[0].rows].sort((first, second) => {
      const [a, b] = [key(first), key(second)];
      return a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b);
    });
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    table.tBodies[0].append(...rows);
  }));
}
// Links to a run open its section; all sections are open in print.
const reveal = () => {
  const target = location.hash.startsWith("#run-") ? document.getElementById(location.hash.slice(1)) : null;
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", reveal);
reveal();
const shut = () => [...document.querySelectorAll("details:not([open])")];
let reopened = [];
addEventListener("beforeprint", () => { reopened = shut(); reopened.forEach((one) => { one.open = true; }); });
addEventListener("afterprint", () => { reopened.forEach((one) => { one.open = false; }); });
// A figure is saved from its image, so that the page contains it once.
for (const button of document.querySelectorAll("button.save")) {
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = button.closest("figure").querySelector("img").src;
    link.download = button.dataset.name;
    link.click();
  });
}
