/* Hide a series by its button in the legend; show the numbers of the nearest point.  Without
   scripts the page has the same content: points have titles, and tables have all numbers. */
(() => {
  const root = document.querySelector(".threefold");
  const legend = root && root.querySelector(".legend");
  if (!legend) return;
  const hidden = new Set();
  const paint = () => {
    for (const part of root.querySelectorAll(".by-model [data-series]"))
      part.classList.toggle("gone", hidden.has(part.dataset.series));
  };
  for (const item of legend.querySelectorAll("li")) {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    button.append(...item.childNodes);
    button.addEventListener("click", () => {
      const shown = hidden.delete(item.dataset.key) || !hidden.add(item.dataset.key);
      button.setAttribute("aria-pressed", String(shown));
      paint();
    });
    item.append(button);
  }
  legend.classList.add("live");

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  root.append(tip);
  const points = (chart) =>
    [...chart.querySelectorAll("g > title")].map((title) => [title.parentNode, title.textContent]);
  const near = (chart, x, y) => {
    let best = null, least = 28;
    for (const [group, text] of chart.points) {
      if (group.closest(".gone")) continue;
      const mark = group.querySelector(".dot, .cell") || group;
      const box = mark.getBoundingClientRect();
      const distance = Math.hypot(x - box.left - box.width / 2, y - box.top - box.height / 2);
      if (distance < least) [best, least] = [[box, text], distance];
    }
    return best;
  };
  for (const chart of root.querySelectorAll("figure svg.chart")) {
    chart.addEventListener("pointermove", (event) => {
      if (!chart.points) {
        chart.points = points(chart);
        for (const [group, text] of chart.points) { // one tip, not two
          group.querySelector(":scope > title").remove();
          group.setAttribute("aria-label", text);
        }
      }
      const best = near(chart, event.clientX, event.clientY);
      tip.hidden = !best;
      if (!best) return;
      tip.textContent = best[1];
      const left = Math.min(best[0].right + 8, document.documentElement.clientWidth - tip.offsetWidth - 6);
      tip.style.left = `${Math.max(6, left) + window.scrollX}px`;
      tip.style.top = `${best[0].top - tip.offsetHeight - 6 + window.scrollY}px`;
    });
    chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
