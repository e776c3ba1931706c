"use strict";
// The page reads without this: it adds tips, sorting, a filter and the theme button.
const root = document.documentElement;
addEventListener("error", (event) => { root.dataset.error = event.message; });

// Theme: follows the system until the button is pressed. Storage may be refused to a page opened from a file.
const themeButton = document.querySelector(".theme");
const stored = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
                 set: (name) => { try { localStorage.setItem("theme", name); } catch { /* stays for this visit */ } } };
const showTheme = (name) => {
  root.dataset.theme = name;
  themeButton.textContent = name === "dark" ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
};
showTheme(stored.get() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const name = root.dataset.theme === "dark" ? "light" : "dark";
  stored.set(name);
  showTheme(name);
});

// Tips: nearest mark under the pointer, arrow keys with the keyboard.
const tip = document.getElementById("tip");
let shown = null;
const hide = () => { if (shown) shown.classList.remove("on"); shown = null; tip.hidden = true; };
const show = (mark) => {
  if (mark === shown) return;
  hide();
  shown = mark;
  mark.classList.add("on");
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  const box = mark.getBoundingClientRect();
  const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), root.clientWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 10;
  tip.style.left = `${Math.max(8, left) + scrollX}px`;
  tip.style.top = `${(above > 48 ? above : box.bottom + 10) + scrollY}px`;
};
for (const chart of document.querySelectorAll("svg.chart")) {
  // Worked out when a chart is first used: a page may hold thousands of marks.
  let places = null;
  const measure = () => {
    places ||= [...chart.querySelectorAll(".p")].map((mark) => {
      const title = mark.querySelector("title"), box = mark.getBBox();
      // The browser's own tip would stand beside ours.
      mark.dataset.tip = title.textContent;
      title.remove();
      return { mark, left: box.x, right: box.x + box.width, top: box.y, bottom: box.y + box.height };
    });
    return places;
  };
  const nearest = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = null, least = 24;
    for (const place of measure()) {
      const dx = Math.max(place.left - at.x, 0, at.x - place.right), dy = Math.max(place.top - at.y, 0, at.y - place.bottom);
      const distance = Math.hypot(dx, dy) + Math.hypot((place.left + place.right) / 2 - at.x, (place.top + place.bottom) / 2 - at.y) * 1e-3;
      if (distance <= least) { least = distance; best = place.mark; }
    }
    return best;
  };
  const point = (event) => { const mark = nearest(event); if (mark) show(mark); else hide(); };
  chart.addEventListener("pointermove", point);
  chart.addEventListener("pointerdown", point);
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  let order = null;
  chart.addEventListener("keydown", (event) => {
    order ||= [...measure()].sort((one, other) => one.left + one.right - other.left - other.right).map((place) => place.mark);
    const last = order.length - 1, now = order.indexOf(shown);
    const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now < 0 ? last : now - 1, ArrowUp: now < 0 ? last : now - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (next === undefined) return;
    event.preventDefault();
    show(order[Math.min(Math.max(next, 0), last)]);
  });
}

// Tables: a click on a heading sorts, numbers by value.
const value = (cell) => {
  const text = cell.textContent.trim();
  const found = text.replace(/[,\s[\]]/g, "").match(/^([×+<-]*)(\d+(?:\.\d+)?(?:e[+-]?\d+)?)/i);
  if (!found) return null;
  const number = Number(found[2]);
  // Gains: ×3 is +200%.
  return found[1].includes("×") ? (number - 1) * 100 : found[1].includes("-") ? -number : number;
};
for (const heading of document.querySelectorAll("th button")) {
  heading.addEventListener("click", () => {
    const th = heading.parentElement, table = th.closest("table"), body = table.tBodies[0];
    const numeric = th.classList.contains("n");
    const down = th.getAttribute("aria-sort") ? th.getAttribute("aria-sort") === "ascending" : numeric;
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => ({ row, key: numeric ? value(row.cells[th.cellIndex]) : row.cells[th.cellIndex].textContent }));
    const empty = (key) => key === null || key === "";
    rows.sort((one, other) => {
      // What is not known stays at the end, whichever way.
      if (empty(one.key) || empty(other.key)) return empty(one.key) - empty(other.key);
      const order = numeric ? one.key - other.key : one.key.localeCompare(other.key);
      return down ? -order : order;
    });
    body.append(...rows.map((each) => each.row));
  });
}
for (const box of document.querySelectorAll(".filter")) {
  box.hidden = false;
  const rows = [...box.parentElement.querySelectorAll("tbody tr")], input = box.querySelector("input"), count = box.querySelector("output");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    count.textContent = words.length ? `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")}` : "";
  });
}
root.dataset.script = "ran";
